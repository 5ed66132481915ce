"""The guard of one agent: its own process that ends the agent's whole process tree.

Run as ``python -I -S GUARD CONTROL_FD STATUS_FD KILLED_FD`` (compiled) in its own session, with the agent's
stdin, stdout and stderr. It is the subreaper of everything that the agent starts, so nothing escapes by a double
fork; and it signals only its own unreaped children, so it cannot hit an unrelated process.

Control pipe, read: first what to start, as its length and the marshalled arguments, environment, working directory
and whether to keep descendants; until then the guard waits. Then ``stop SECONDS``: send TERM, and KILL after that
many seconds. The end of the pipe, which the death of agentctl causes too, means KILL at once.

Status pipe, written, one line each: ``spawned PID`` or ``failed ERRNO``; ``exited CODE`` (negative for a signal) as
soon as the agent has ended; ``left PID`` for each process that may not be killed.

Killed-processes file, written (-1: none): the command line of each process that the agent left running, one per line.

The guard ends when nothing of the tree is left. Descendants that outlive the agent are ended after it, unless they are
kept: then they run on until they end or an order to stop comes. It uses only the standard library and only modules
that import fast: every start of an agent waits for it.
"""

from __future__ import annotations

import ctypes
import errno
import marshal
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # without the enums, which cost 2 ms

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LENGTH_BYTES = 8
"""Bytes of the length before the first order."""
MAX_COMMAND_LENGTH = 200
"""Characters of a command line that are recorded."""
MAX_RECORDED = 500
"""Command lines of ended processes that are recorded."""
MAX_RECORDED_LENGTH = 800
"""Characters of each: more than are shown, so that secrets are found before it is cut."""
RECHECK_INTERVAL = 0.05
"""Seconds between two scans while a tree is being ended: new orphans arrive without a signal."""


class suppress:  # noqa: N801
    """``contextlib.suppress``, whose module costs 3 ms."""

    def __init__(self, *errors: type[BaseException]):
        self.errors = errors

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, self.errors)


EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""As ``executors_app.wire.exhaustion``, which this process does not import."""
RETRY_INTERVAL = 0.05
_LIBC = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """Call ``prctl``."""
    _LIBC.prctl(option, value, 0, 0, 0)


def children_of(pid: int) -> list[int]:
    """Return the pids of a process's children, including zombies.

    Raises OSError if no descriptors or memory are left to see them with: none would be a lie.
    """
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  (pathlib costs 10 ms of start)
            found.extend(_children_of_thread(pid, thread))
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise
        return found
    if found or os.path.exists(f"/proc/{pid}/task/{pid}/children"):  # noqa: PTH110
        return found
    return _children_by_scan(pid)


def _children_of_thread(pid: int, thread: str) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{thread}/children") as file:  # noqa: PTH123
            return [int(child) for child in file.read().split()]
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise
        return []


def _children_by_scan(pid: int) -> list[int]:
    """Return the children by scanning all processes, on a kernel without CONFIG_PROC_CHILDREN."""
    entries = os.listdir("/proc")  # noqa: PTH208
    return [int(entry) for entry in entries if entry.isdigit() and _parent_of(entry) == pid]


def _parent_of(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:  # noqa: PTH123
            return int(file.read().rsplit(")", 1)[1].split()[1])
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise
        return 0


def own_children() -> list[int]:
    """Return the pids of this process's children; waits while no descriptors or memory are left to see them with."""
    while True:
        try:
            return children_of(os.getpid())
        except OSError:
            time.sleep(RETRY_INTERVAL)


def command_line_of(pid: int, limit: int = MAX_COMMAND_LENGTH) -> str:
    """Return at most ``limit`` characters of a command line; empty for a zombie or a process that is gone."""
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
        text = file.read(4 * limit).decode(errors="replace")
        return " ".join(text.replace("\0", " ").split())[:limit]
    return ""


class Guard:
    """Starts the agent, waits for its end or an order to end it, and then ends its whole tree."""

    def __init__(self, control: int, status: int, killed_file: int):
        self.control, self.status, self.words = control, status, killed_file
        self.argv: list[str] = []
        self.env: dict[str, str] = {}
        self.cwd = "/"
        self.keeps_descendants = False
        self.agent = 0
        self.exited = False
        self.reaped = False
        self.kill_at: float | None = None
        self.untouchable: set[int] = set()

    def run(self) -> None:
        """Run from the start of the agent to the end of its last descendant."""
        self.prepare()
        if not self.read_order():
            return
        self.ignore_signals()
        if not self.spawn():
            return
        while not self.exited:
            self.wait()
            self.reap()
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                break
        if self.keeps_descendants and self.exited and self.kill_at is None:
            self.keep_descendants()
        self.end_tree()

    def keep_descendants(self) -> None:
        """Report the agent's exit, and let its descendants run on until none is left or they have been stopped."""
        self.take_in(*os.waitpid(self.agent, 0))
        while own_children():
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                return
            self.wait()
            self.reap()

    def prepare(self) -> None:
        """Become the subreaper, and keep our descriptors out of the agent."""
        for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208
            with suppress(OSError):
                os.set_inheritable(int(descriptor), int(descriptor) < 3)
        prctl(PR_SET_CHILD_SUBREAPER, 1)

    def read_order(self) -> bool:
        """Wait for the order to start an agent; return False if none comes."""
        size = self.read_exactly(LENGTH_BYTES)
        order = self.read_exactly(int.from_bytes(size, "big")) if size else b""
        if order:
            self.argv, self.env, self.cwd, self.keeps_descendants = marshal.loads(order)  # noqa: S302  (from agentctl, through its own pipe)
        return bool(order)

    def read_exactly(self, size: int) -> bytes:
        """Read ``size`` bytes of the control pipe; return nothing if it ends before."""
        data = b""
        while len(data) < size:
            chunk = os.read(self.control, size - len(data))
            if not chunk:
                return b""
            data += chunk
        return data

    def ignore_signals(self) -> None:
        """Survive every signal but KILL; TERM stops the agent."""
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self.soft_stop(2))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Through this pipe a signal ends the next select, also one that arrives just before it.
        self.wakeup, write_end = os.pipe()
        os.set_blocking(self.wakeup, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)

    def spawn(self) -> bool:
        """Start the agent; report it and return False if it cannot be executed."""
        failure, failure_write = os.pipe()
        self.agent = os.fork()
        if self.agent == 0:
            self.become_agent(failure_write)
        os.close(failure_write)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):  # only the agent may hold the ends of its pipes
            os.dup2(null, descriptor)
        errno = os.read(failure, 16)  # empty once the exec has closed the agent's end of this pipe
        self.tell(f"failed {errno.decode()}" if errno else f"spawned {self.agent}")
        if errno:
            os.waitpid(self.agent, 0)
        return not errno

    def become_agent(self, failure_write: int) -> None:
        """Run in the child: new session, death with the guard, default signal handling, then exec."""
        try:
            guard = os.getppid()
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (
                signal.SIGHUP,
                signal.SIGINT,
                signal.SIGTERM,
                signal.SIGCHLD,
                signal.SIGPIPE,
                signal.SIGXFSZ,
            ):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.chdir(self.cwd)
            # PDEATHSIG takes effect only from here on: if the guard died before, do not start the agent.
            if os.getppid() == guard:
                os.execvpe(self.argv[0], self.argv, self.env)  # noqa: S606
        except ValueError:
            os.write(failure_write, b"22")  # EINVAL: a NUL in an argument
        except OSError as error:
            os.write(failure_write, str(error.errno).encode())
        finally:
            os._exit(127)

    def wait(self) -> None:
        """Wait until a child ends, an order arrives, or the grace is over."""
        if self.kill_at is None:
            timeout = None
        else:
            timeout = max(0.0, self.kill_at - time.monotonic())
        watched = [self.wakeup]
        if self.control >= 0:
            watched.append(self.control)
        readable, _, _ = select.select(watched, [], [], timeout)
        if self.wakeup in readable:
            with suppress(BlockingIOError):
                os.read(self.wakeup, 4096)
        if self.control in readable:
            self.handle_order(os.read(self.control, 4096))

    def handle_order(self, order: bytes) -> None:
        """Carry out an order of agentctl; an empty one means that agentctl is gone."""
        if not order:
            self.control = -1
            self.kill_at = time.monotonic()
            self.record_killed_processes()
            return
        for line in order.splitlines():
            word, _, seconds = line.partition(b" ")
            if word == b"stop":
                self.soft_stop(float(seconds))
            elif word == b"record":
                self.record_killed_processes()
                self.tell("recorded 0")

    def soft_stop(self, grace: float) -> None:
        """Send TERM once, to the agent's group and to adopted children; a deadline can only move closer."""
        first, kill_at = self.kill_at is None, time.monotonic() + grace
        self.kill_at = kill_at if self.kill_at is None else min(self.kill_at, kill_at)
        if first:
            self.record_killed_processes()
        if not first or grace <= 0 or not self.agent:
            return
        if self.reaped:
            self.terminate_descendants()
            return
        if self.exited:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.agent, signal.SIGTERM)
        # Without waiting for descriptors to see them with: these may be the agent's, and SIGKILL follows.
        with suppress(OSError):
            for pid in children_of(os.getpid()):
                with suppress(ProcessLookupError, PermissionError):
                    if os.getpgid(pid) != self.agent:
                        os.kill(pid, signal.SIGTERM)

    def terminate_descendants(self) -> None:
        """Send TERM to all that the agent has left: its group may belong to somebody else by now."""
        with suppress(OSError):
            for pid in self.descendants():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGTERM)

    def reap(self) -> None:
        """Reap ended children, except the agent: while it is a zombie, its process group id cannot be reused."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            if ended.si_pid == self.agent and not self.reaped:
                self.exited = True
                return
            os.waitpid(ended.si_pid, 0)

    def end_tree(self) -> None:
        """Kill until no child is left; the children of each dead process become ours."""
        self.record_killed_processes()
        # The group is killed before the agent is reaped: until then no one else can get its id.
        if not self.reaped:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.agent, signal.SIGKILL)
        if self.exited and not self.reaped:
            self.take_in(*os.waitpid(self.agent, 0))
        while True:
            self.kill_children()
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid:
                self.take_in(pid, status)
            elif (children := own_children()) and self.untouchable.issuperset(children):
                return
            else:
                self.pause_for_children()

    def record_killed_processes(self) -> None:
        """Record the agent's descendants, once, before they are killed: afterwards their command lines are lost."""
        killed_file, self.words = self.words, -1
        if killed_file < 0:
            return
        with suppress(OSError):
            for pid in self.descendants()[:MAX_RECORDED]:
                command = command_line_of(pid, MAX_RECORDED_LENGTH)
                if command and not self.is_agent(command[:MAX_COMMAND_LENGTH]):
                    os.write(killed_file, command.encode("utf-8", "replace") + b"\n")
        os.close(killed_file)

    def descendants(self) -> list[int]:
        """Return every process of the tree except the agent. Raises OSError as ``children_of`` does."""
        found, new = [], children_of(os.getpid())
        while new:
            found += new
            new = [child for pid in new for child in children_of(pid)]
        return [pid for pid in found if self.reaped or pid != self.agent]

    def is_agent(self, command: str) -> bool:
        """Whether a command line is the agent's own: some agents re-execute themselves as a child."""
        options = " ".join(" ".join(self.argv[1:]).split())[:MAX_COMMAND_LENGTH]
        same_program = os.path.basename(command.split(maxsplit=1)[0]) == os.path.basename(self.argv[0])  # noqa: PTH119
        if options:
            return command.endswith(options)
        return same_program

    def pause_for_children(self) -> None:
        """Wait a moment, or until a child ends."""
        select.select([self.wakeup], [], [], RECHECK_INTERVAL)
        with suppress(BlockingIOError):
            os.read(self.wakeup, 4096)

    def kill_children(self) -> None:
        """Kill every child; report one that belongs to another user, once."""
        for pid in own_children():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            except PermissionError:
                if pid not in self.untouchable:
                    self.untouchable.add(pid)
                    self.tell(f"left {pid}")

    def take_in(self, pid: int, status: int) -> None:
        """Report the exit code if the reaped child was the agent."""
        if pid == self.agent and not self.reaped:
            self.reaped = True
            self.tell(f"exited {os.waitstatus_to_exitcode(status)}")

    def tell(self, line: str) -> None:
        """Write a status line; agentctl may be gone already."""
        with suppress(OSError):
            os.write(self.status, line.encode() + b"\n")


if __name__ == "__main__":
    Guard(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])).run()
