"""The guard of one job: it runs the script, stores its output, ends its whole tree, and records how it ended.

Forked by the guard of agents (``forked_guard``), or run as ``python -I -S ARCHIVE DESCRIPTORS``, in a session of its
own. The descriptors are CONTROL, ORDER, END, STDOUT, STDERR and CWD. ORDER contains the marshalled ``(argv,
environment, timeout, grace)``. See ``guard_process`` for what every guard does; this one takes ``stop GRACE REASON`` on
its control pipe, and the end of that pipe means KILL at once.

The guard records the end, not agentctl, so that an exit code survives the death of agentctl. END gets the line
``begun SECONDS`` before the script starts, and ``end_line`` before the guard exits; both are synced. Whoever holds the
lock on END is alive. STDOUT and STDERR are ring files: 16 digits with the total number of bytes, then the last
``KEPT_BYTES`` of them. A failed write loses only output. Standard library only.
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
"""The last bytes of each stream that are stored."""
BEGUN = b"begun"
ENDED = b"ended"
CHUNK_BYTES = 64 * 1024
LAST_CHUNKS = 64
"""Reads of a stream after the end: a process that could not be killed may write forever."""
TIMED_OUT, ORPHANED, NOT_STARTED = "timeout", "agentctl_ended", "spawn_failed"


class RingFile:
    """The last bytes of one stream, in a ring file."""

    def __init__(self, file: int):
        self.file, self.total, self.is_incomplete = file, 0, False
        self.pipe = -1

    def append(self, data: bytes) -> None:
        """Store output. After a failed write nothing more is stored, because the gap could not be seen."""
        if self.is_incomplete:
            data = b""
        rest = memoryview(data)
        try:
            while rest:
                position = self.total % KEPT_BYTES
                written = os.pwrite(self.file, rest[: KEPT_BYTES - position], HEAD_BYTES + position)
                rest, self.total = rest[written:], self.total + written
        except OSError:
            self.is_incomplete = True
        with suppress(OSError):
            os.pwrite(self.file, b"%016d" % self.total, 0)

    def read_pipe(self) -> bool:
        """Store what the pipe contains; return False if it is empty or at its end."""
        try:
            data = os.read(self.pipe, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            os.close(self.pipe)
            self.pipe = -1
            return False
        self.append(data)
        return True

    def close(self) -> None:
        """Store the remaining output, and sync the file if there was any."""
        for _ in range(LAST_CHUNKS):
            if self.pipe < 0 or not self.read_pipe():
                break
        try:
            if self.total:
                os.fsync(self.file)
        except OSError:
            self.is_incomplete = True


class JobGuard(Guard):
    """A guard that stores its script's output and records how it ended."""

    def __init__(self, descriptors: list[int]):
        control, self.order, self.end, stdout, stderr, cwd = descriptors
        super().__init__(control, -1, -1)
        self.cwd = f"/proc/self/fd/{cwd}"
        self.rings = (RingFile(stdout), RingFile(stderr))
        self.deadline = 0.0
        self.grace = 0.0
        self.reason = ""
        self.is_orphaned = False
        self.exit_code: int | None = None

    def run(self) -> None:
        """Run from the start of the script to the record of its end."""
        os.umask(0o022)
        super().run()
        for ring in self.rings:
            ring.close()
        # A script that ended on its own at the same moment keeps its exit code; any other was killed with agentctl.
        if self.is_orphaned and self.exit_code in (None, -signal.SIGKILL):
            self.reason = self.reason or ORPHANED
        totals, lost = [ring.total for ring in self.rings], any(ring.is_incomplete for ring in self.rings)
        self.write(end_line(self.exit_code, self.reason, totals, time.time(), lost=lost))

    def write(self, line: bytes) -> None:
        """Append a line to END, synced before this returns; its space was reserved."""
        with suppress(OSError):
            os.write(self.end, line)
            os.fsync(self.end)

    def read_order(self) -> bool:
        """Read what to run; return False if the job was stopped before it started."""
        data = os.pread(self.order, os.fstat(self.order).st_size, 0)
        self.argv, self.env, timeout, self.grace = marshal.loads(data)  # noqa: S302  (agentctl's own)
        if select.select([self.control], [], [], 0)[0]:
            self.handle_order(os.read(self.control, 4096))
            return False
        # Before the script starts: after a crash, a job without this line has certainly not begun.
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
        """Note what the record needs of a status line, instead of writing it: a job has no status pipe."""
        word, _, number = line.partition(" ")
        if word == "failed":
            self.reason = NOT_STARTED
            self.rings[1].append(f"{self.argv[0]}: {os.strerror(int(number))}\n".encode())
        elif word == "exited":
            self.exit_code = int(number)

    def wait(self) -> None:
        """Wait until there is output, a child ends, an order arrives, or the time is over."""
        if self.kill_at is None and time.monotonic() >= self.deadline:
            self.stop(self.grace, TIMED_OUT)
        until = self.deadline
        if self.kill_at is not None:
            until = self.kill_at
        open_rings = {ring.pipe: ring for ring in self.rings if ring.pipe >= 0}
        watched = [self.wakeup, *open_rings]
        if self.control >= 0:
            watched.append(self.control)
        readable, _, _ = select.select(watched, [], [], max(0.0, until - time.monotonic()))
        for pipe in readable:
            if pipe in open_rings:
                open_rings[pipe].read_pipe()
        if self.wakeup in readable:
            with suppress(BlockingIOError):
                os.read(self.wakeup, 4096)
        if self.control in readable:
            self.handle_order(os.read(self.control, 4096))

    def handle_order(self, order: bytes) -> None:
        """Stop the job, because agentctl requested it or is gone."""
        if not order:
            self.is_orphaned = True
            super().handle_order(order)
        for line in order.splitlines():
            _, grace, why = line.decode().split()
            self.stop(float(grace), why)

    def stop(self, grace: float, reason: str) -> None:
        """Send TERM, and KILL after ``grace`` seconds; the first reason counts."""
        self.reason = self.reason or reason
        self.soft_stop(grace)


def end_line(exit_code: int | None, reason: str, totals: list[int], at: float, *, lost: bool = False) -> bytes:
    """Return ``ended CODE REASON STDOUT STDERR LOST SECONDS``: ``-`` for none, streams as total bytes."""
    code = "-" if exit_code is None else exit_code
    return b"%b %b\n" % (ENDED, f"{code} {reason or '-'} {totals[0]} {totals[1]} {int(lost)} {at:.3f}".encode())


def main() -> None:
    """Guard the job whose descriptors are on the command line."""
    JobGuard([int(number) for number in sys.argv[1:]]).run()
