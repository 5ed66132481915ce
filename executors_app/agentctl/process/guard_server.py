"""A copy of agentctl that forks guards, so that none needs an interpreter of its own.

The copy is made before agentctl has threads, a token or the lock of its directory, and keeps no open file but its
socket (``forking``). A guard's parent ends at once, so the guard becomes a child of agentctl, which is its subreaper.
Only an agentctl that was forked itself has a guard server.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Final

from executors_app.agentctl.process import forking
from executors_app.agentctl.process.guard_process import Guard

_NAME: Final = "kandev-guard-server"
_GUARD_NAME: Final = "kandev-guard"
_SOCKET: Final = 3


class ForkedGuard:
    """A forked guard, to be used like ``subprocess.Popen``."""

    def __init__(self, pid: int):
        self.pid = pid
        self._ended = False

    def poll(self) -> int | None:
        """Return 0 once it has ended and was reaped, else None."""
        return self._reap(os.WNOHANG)

    def wait(self) -> None:
        """Wait for its end."""
        self._reap(0)

    def kill(self) -> None:
        """Kill it, if it lives."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _reap(self, options: int) -> int | None:
        if not self._ended:
            try:
                self._ended = os.waitpid(self.pid, options)[0] == self.pid
            except ChildProcessError:
                self._ended = True
        return 0 if self._ended else None


class _Server:
    """The guard server of this process."""

    process: ForkedGuard | None = None
    connection: socket.socket


def start(marker: Mapping[str, str]) -> None:
    """Start it, before there are threads; it has the environment ``marker``. Raises OSError."""
    ours, theirs = forking.socket_pair()
    if pid := os.fork():
        theirs.close()
        _Server.process, _Server.connection = ForkedGuard(pid), ours
        return
    try:
        _serve(theirs, marker)
    finally:
        os._exit(0)


def is_running() -> bool:
    """Whether guards can be forked."""
    return _Server.process is not None and _Server.process.poll() is None


def pid() -> int:
    """Return its pid; 0 if there is none."""
    return _Server.process.pid if _Server.process else 0


def fork(env: Mapping[str, str], files: Sequence[int]) -> ForkedGuard | None:
    """Fork a guard with the environment ``env``; return None if there is no server, or if it has died.

    ``files``: its ends of stdin, stdout, stderr, control and status, and the file of killed processes or -1.
    """
    if not is_running():
        return None
    with contextlib.suppress(OSError):
        given = [file for file in files if file >= 0]
        return ForkedGuard(forking.request_fork(_Server.connection, [_GUARD_NAME], env, given=given))
    return None


def stop() -> None:
    """End the server, and wait for its end; guards and their agents live on."""
    if _Server.process is not None:
        _Server.connection.close()
        _Server.process.wait()
        _Server.process = None


def _serve(connection: socket.socket, marker: Mapping[str, str]) -> None:
    os.setsid()
    os.dup2(connection.fileno(), _SOCKET, inheritable=False)
    os.closerange(_SOCKET + 1, os.sysconf("SC_OPEN_MAX"))
    gc.freeze()
    with socket.socket(fileno=_SOCKET) as only:
        forking.serve_forks(only, [_NAME], marker, _run_guard)


def _run_guard(argv: Sequence[str], files: Sequence[int]) -> int:
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
        os.close(file)
    control, status, *killed = files[3:]
    Guard(control, status, *(killed or [-1])).run()
    return 0
