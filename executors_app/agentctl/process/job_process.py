"""The guard of one job: runs its script, keeps what it says, ends its whole tree, and writes down how it ended.

Run as ``python -I -S ARCHIVE CONTROL ORDER END STDOUT STDERR``, all but the first descriptors, in a session of its
own. ORDER holds ``(argv, environment, cwd, timeout, grace)``, marshalled. What a guard does and never does is in
``guard_process``; this one hears ``stop GRACE WHY`` on its control pipe, and the pipe's end means KILL at once.

The end is written here and not by agentctl, so that an agentctl that dies takes no exit code with it. END gets the
line ``begun SECONDS`` before there is a script and, on the disk before this process ends, ``end_line``; who holds
the lock on it lives. STDOUT and STDERR are rings: 16 digits, how many bytes were said, then the last ``KEPT`` of
them. A write that fails loses output and nothing else. Standard library alone.
"""

from __future__ import annotations

import marshal
import os
import select
import sys
import time

from executors_app.agentctl.process.guard_process import Guard, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

HEAD_BYTES = 16
KEPT_BYTES = 1 << 20
"""Bytes of each stream that are kept, the last ones."""
BEGUN = b"begun"
ENDED = b"ended"
CHUNK_BYTES = 64 * 1024
LAST_CHUNKS = 64
"""Reads of a stream after the end: what could not be ended may talk for ever."""
TIMED_OUT, ORPHANED, NOT_STARTED = "timeout", "agentctl_ended", "spawn_failed"


class RingFile:
    """The last bytes of one stream, in a file."""

    def __init__(self, file: int):
        self.file, self.said, self.lost = file, 0, False
        self.pipe = -1

    def keep(self, data: bytes) -> None:
        """Take in what was said. After a write that failed nothing more is kept: a gap would not be seen."""
        rest = memoryview(b"" if self.lost else data)
        try:
            while rest:
                place = self.said % KEPT_BYTES
                written = os.pwrite(self.file, rest[: KEPT_BYTES - place], HEAD_BYTES + place)
                rest, self.said = rest[written:], self.said + written
        except OSError:
            self.lost = True
        with suppress(OSError):
            os.pwrite(self.file, b"%016d" % self.said, 0)

    def hear(self) -> bool:
        """Take in what the pipe holds; False where it holds nothing, or is at its end."""
        try:
            data = os.read(self.pipe, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            os.close(self.pipe)
            self.pipe = -1
            return False
        self.keep(data)
        return True

    def close(self) -> None:
        """Take in the last words, and have all of it on the disk."""
        for _ in range(LAST_CHUNKS):
            if self.pipe < 0 or not self.hear():
                break
        try:
            os.fsync(self.file)
        except OSError:
            self.lost = True


class JobGuard(Guard):
    """A guard that hears its script and has the last word on it."""

    def __init__(self, control: int, order: int, end: int, stdout: int, stderr: int):
        super().__init__(control, -1, -1)
        self.order, self.end = order, end
        self.rings = (RingFile(stdout), RingFile(stderr))
        self.deadline = 0.0
        self.grace = 0.0
        self.why = ""
        self.orphaned = False
        self.exit_code: int | None = None

    def run(self) -> None:
        """From the script's birth to the record of its end."""
        os.umask(0o022)
        super().run()
        for ring in self.rings:
            ring.close()
        if self.orphaned and self.exit_code in (None, -signal.SIGKILL):
            self.why = self.why or ORPHANED
        said, lost = [ring.said for ring in self.rings], any(ring.lost for ring in self.rings)
        self.write(end_line(self.exit_code, self.why, said, time.time(), lost=lost))

    def write(self, line: bytes) -> None:
        """Add a line to the record, on the disk before this returns; there is room kept for it."""
        with suppress(OSError):
            os.write(self.end, line)
            os.fsync(self.end)

    def read_order(self) -> bool:
        """Read what is to be run; False where it is not to be run any more."""
        data = os.pread(self.order, os.fstat(self.order).st_size, 0)
        self.argv, self.env, self.cwd, timeout, self.grace = marshal.loads(data)  # noqa: S302  (agentctl's own)
        if select.select([self.control], [], [], 0)[0]:
            self.handle_order(os.read(self.control, 4096))
            return False
        self.write(b"%b %.3f\n" % (BEGUN, time.time()))
        self.deadline = time.monotonic() + timeout
        return True

    def spawn(self) -> bool:
        """Start the script with the writing ends of two pipes for its output."""
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        for number, ring in enumerate(self.rings, 1):
            ring.pipe, write_end = os.pipe()
            os.set_blocking(ring.pipe, False)
            os.dup2(write_end, number)
            os.close(write_end)
        return super().spawn()

    def tell(self, line: str) -> None:
        """Nobody listens: keep what matters for the record."""
        word, _, number = line.partition(" ")
        if word == "failed":
            self.why = NOT_STARTED
            self.rings[1].keep(f"{self.argv[0]}: {os.strerror(int(number))}\n".encode())
        elif word == "exited":
            self.exit_code = int(number)

    def wait(self) -> None:
        """Until something is said, a child ends, an order comes, or the time is over."""
        if self.kill_at is None and time.monotonic() >= self.deadline:
            self.stop(self.grace, TIMED_OUT)
        until = self.deadline if self.kill_at is None else self.kill_at
        open_rings = {ring.pipe: ring for ring in self.rings if ring.pipe >= 0}
        watched = [self.wakeup, *open_rings] + ([self.control] if self.control >= 0 else [])
        readable, _, _ = select.select(watched, [], [], max(0.0, until - time.monotonic()))
        for pipe in readable:
            if pipe in open_rings:
                open_rings[pipe].hear()
        if self.wakeup in readable:
            with suppress(BlockingIOError):
                os.read(self.wakeup, 4096)
        if self.control in readable:
            self.handle_order(os.read(self.control, 4096))

    def handle_order(self, order: bytes) -> None:
        """End it, as agentctl says or because there is no agentctl any more."""
        if not order:
            self.orphaned = True
            super().handle_order(order)
        for line in order.splitlines():
            _, grace, why = line.decode().split()
            self.stop(float(grace), why)

    def stop(self, grace: float, why: str) -> None:
        """TERM, and KILL after so many seconds; the first reason stands."""
        self.why = self.why or why
        self.soft_stop(grace)


def end_line(exit_code: int | None, why: str, said: list[int], at: float, *, lost: bool = False) -> bytes:
    """``ended CODE WHY STDOUT STDERR LOST SECONDS``: - for nothing, the streams by how many bytes were said."""
    code = "-" if exit_code is None else exit_code
    return b"%b %b\n" % (ENDED, f"{code} {why or '-'} {said[0]} {said[1]} {int(lost)} {at:.3f}".encode())


def main() -> None:
    """Guard the job whose descriptors the command line names."""
    JobGuard(*map(int, sys.argv[1:6])).run()
