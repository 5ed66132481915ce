"""A guard without its own interpreter: agentctl forks it once and uses it for one agent after the other.

The fork is made before agentctl has threads, a token or the lock of its directory, and keeps no open file but a socket.
A message there has the descriptors of a guard (``guard_process``), which this process then is until nothing is left
of the agent; it reports that with the status line ``done 0``. It ends with agentctl. Only an agentctl that was forked
has one (``agentctl/launcher.py``); after the death of this guard, others are executed.

While it has no agent, it also forks the guards of jobs (``job_process``), each of which is a child of agentctl with a
name of its own, and independent of this process.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Final

from executors_app.agentctl.process.guard_process import PR_SET_CHILD_SUBREAPER, Guard, prctl, suppress
from executors_app.agentctl.process.job_process import JobGuard
from executors_app.machine.process.forking import ProcIdentity

_NAME: Final = "kandev-guard"
_JOB_NAME: Final = "kandev-job-guard"
_SOCKET: Final = 3
_MAX_FILES: Final = 8
_FOR_AGENT, _FOR_JOB = b"a", b"j"
_FORK_TIMEOUT: Final = 5.0
"""Seconds after which it is killed if it does not fork: a process of ours can be stopped by any other."""


class ForkedProcess:
    """A child that was forked, not executed; like ``subprocess.Popen`` where it is used like one."""

    def __init__(self, pid: int):
        self.pid = pid
        self._has_ended = False

    def poll(self) -> int | None:
        """Return 0 if it has ended and was reaped, else None."""
        return self._reap(os.WNOHANG)

    def wait(self) -> None:
        """Wait for its end, and reap it."""
        self._reap(0)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _reap(self, options: int) -> int | None:
        if not self._has_ended:
            try:
                self._has_ended = os.waitpid(self.pid, options)[0] == self.pid
            except ChildProcessError:
                self._has_ended = True
        if self._has_ended:
            return 0
        return None


class ForkedGuard(ForkedProcess):
    """The forked guard as its parent sees it."""

    def __init__(self, pid: int, connection: socket.socket):
        super().__init__(pid)
        self.is_free = True
        """Whether it has no agent."""
        self._connection = connection

    def use(self, files: Sequence[int]) -> bool:
        """Send it the descriptors of a guard; return False if it has an agent already, or has died.

        ``files``: its ends of stdin, stdout, stderr, control and status, and the file of killed processes or -1.
        """
        if not self._send(_FOR_AGENT, [file for file in files if file >= 0]):
            return False
        self.is_free = False
        return True

    def fork_job_guard(self, files: Sequence[int]) -> ForkedProcess | None:
        """Let it fork a ``JobGuard`` with the descriptors ``files``; return None if nothing was or will be started."""
        answer, report = os.pipe()
        with os.fdopen(answer, "rb") as answers:
            try:
                if not self._send(_FOR_JOB, [report, *files]):
                    return None
            finally:
                os.close(report)
            # The end of the pipe is reported, not its content. Then nothing more will be written: a request dies with
            # the process that holds it.
            waiting = select.poll()
            waiting.register(answers, 0)
            if not waiting.poll(_FORK_TIMEOUT * 1000):
                self.kill()
            pid = answers.read()
        if pid:
            return ForkedProcess(int(pid))
        return None

    def _send(self, what: bytes, files: Sequence[int]) -> bool:
        if not self.is_free or self.poll() is not None:
            return False
        try:
            socket.send_fds(self._connection, [what], files)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """End it; it must have no agent."""
        self._connection.close()
        self.kill()
        self.wait()


class _Own:
    """The forked guard of this process."""

    guard: ForkedGuard | None = None


def start(marker: Mapping[str, str], identity: ProcIdentity) -> None:
    """Fork it, before there are threads; it has the environment ``marker``. ``identity`` is ours. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if pid := os.fork():
        theirs.close()
        _Own.guard = ForkedGuard(pid, ours)
        return
    try:
        os.setsid()
        os.dup2(theirs.fileno(), _SOCKET, inheritable=False)
        _close_files()
        identity.show([_NAME], marker)
        with socket.socket(fileno=_SOCKET) as connection:
            while _serve(connection, marker, identity):
                pass
    finally:
        os._exit(0)


def own() -> ForkedGuard | None:
    """Return the forked guard of this process if it lives."""
    if _Own.guard is not None and _Own.guard.poll() is None:
        return _Own.guard
    return None


def own_pid() -> int:
    """Return its pid; 0 if there is none."""
    guard = own()
    if guard:
        return guard.pid
    return 0


def stop() -> None:
    """End it, once nothing is left of its agent."""
    if _Own.guard is not None:
        _Own.guard.close()
        _Own.guard = None


def _serve(connection: socket.socket, marker: Mapping[str, str], identity: ProcIdentity) -> bool:
    """Carry out the next request; return False if there is none, or if this process can serve no other."""
    message, files, _, _ = socket.recv_fds(connection, 1, _MAX_FILES, socket.MSG_CMSG_CLOEXEC)
    if message == _FOR_JOB:
        _fork_job_guard(connection, files, marker, identity)
        return True
    return bool(message) and _guard_an_agent(files)


def _fork_job_guard(
    connection: socket.socket, files: Sequence[int], marker: Mapping[str, str], identity: ProcIdentity
) -> None:
    """Fork twice, so that the guard becomes a child of agentctl, the nearest subreaper, before its pid is known there.

    Without memory or processes for it, the pipe ends without a pid, and agentctl executes a guard instead.
    """
    with suppress(OSError):
        if (middle := os.fork()) == 0:
            try:
                if os.fork() == 0:
                    connection.close()
                    _guard_a_job(files, marker, identity)
            finally:
                os._exit(0)
        os.waitpid(middle, 0)
    for file in files:
        os.close(file)


def _guard_a_job(files: Sequence[int], marker: Mapping[str, str], identity: ProcIdentity) -> None:
    """Run in a fork: change the identity first, then report the pid, then guard the job to its end."""
    os.setsid()
    identity.show([_JOB_NAME], marker)
    report, *own = files
    os.write(report, b"%d" % os.getpid())
    os.close(report)
    JobGuard(own).run()


def _guard_an_agent(files: Sequence[int]) -> bool:
    """Guard an agent to its end; return False if a process of it could not be killed."""
    for number in range(3):
        os.dup2(files[number], number)
        os.close(files[number])
    control, status, *killed = files[3:]
    guard = Guard(control, status, *(killed or [-1]))
    guard.run()
    if guard.untouchable:
        return False  # agentctl adopts it
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    prctl(PR_SET_CHILD_SUBREAPER, 0)  # the guard of a job must become agentctl's child, not ours
    guard.tell("done 0")
    _close_files()
    return True


def _close_files() -> None:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in range(3):
        os.dup2(null, number)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  (pathlib would take memory)
        if int(name) > _SOCKET:
            with suppress(OSError):
                os.close(int(name))
