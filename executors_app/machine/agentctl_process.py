"""Start an agentctl as a detached process: forked by this process's launcher, or executed where none can be forked."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from executors_app.machine.process import forking, identity, spawning
from executors_app.machine.process.identity import ProcessIdentity

logger = logging.getLogger(__name__)

_STARTER: Final = """
import os, signal, sys
child = os.fork()
if child:
    os.write(1, str(child).encode())
    os._exit(0)
os.setsid()
os.dup2(2, 1)
signal.pthread_sigmask(signal.SIG_SETMASK, [])
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
_RETRY_DELAY: Final = 60.0
"""Seconds without a launcher after one has ended early, so that a machine that cannot use one pays for it only once."""
_LAUNCHER_MODULE: Final = "executors_app.agentctl.launcher"
SOURCE_ROOT: Final = Path(__file__).resolve().parents[2]


def start_detached(
    argv: Sequence[str], *, environment: Mapping[str, str], log: int | None, files: Sequence[int] = ()
) -> int:
    """Start ``argv`` (an absolute path first) in its own session, as a child of init, and return its pid.

    It inherits no descriptors except ``files``, and no environment, signal mask or working directory of the caller; its
    output goes to the descriptor ``log``, or to our standard error. A double fork with setsid, because a plain child
    would die with the caller's process group, or stay its zombie. Raises OSError.
    """
    try:
        starter = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _STARTER, *argv],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            umask=0o077,
            start_new_session=True,
            pass_fds=files,
            timeout=30,
            check=True,
        )
    except subprocess.SubprocessError as error:
        raise OSError(f"the starter: {error}") from error
    return int(starter.stdout)


def start_agentctl(argv: Sequence[str], environment: Mapping[str, str], log_file: Path, lock: int) -> int:
    """Fork or execute an agentctl with the command line ``argv``, and return its pid. Blocks; raises OSError.

    Its output is appended to ``log_file``. A fork holds the start lock ``lock`` until it can be recognised: if we die
    before, whoever gets the lock next finds an agentctl or knows that there is none. An executed one can be recognised
    from the beginning, by the command line of its starter.
    """
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        try:
            return _LAUNCHER.fork(argv, environment, log, lock)
        except OSError as error:
            logger.warning("no agentctl can be forked, so one is executed: %s", error)
        return start_detached(argv, environment=environment, log=log)
    finally:
        os.close(log)


class _Launcher:
    """This process's launcher (``agentctl.launcher``), started when it is first needed and again after its death."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._process: ProcessIdentity | None = None
        self._retry_at = 0.0

    def fork(self, argv: Sequence[str], environment: Mapping[str, str], log: int, lock: int) -> int:
        """Return the pid of a new agentctl; raises OSError if none was started.

        Then also for the next minute if the launcher has ended, but not if it only could not serve this request.
        """
        with self._lock:
            if time.monotonic() < self._retry_at:
                raise ConnectionRefusedError("the launcher has just ended")
            if self._connection is None or self._process is None or not identity.is_alive(self._process):
                self._start()
            connection, process = self._connection, self._process
        try:
            if connection is None or process is None:
                raise ConnectionResetError("the launcher ended while it started")
            kill = partial(identity.kill_all, [process], 5)
            return forking.request_fork(connection, argv, environment, given=[log], held=[lock], kill_server=kill)
        except OSError:
            if connection is None or forking.has_ended(connection):
                self._retry_at = time.monotonic() + _RETRY_DELAY
            raise

    def _start(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection, theirs = forking.socket_pair()
        atexit.register(self._connection.close)
        with theirs:
            argv = [sys.executable, "-P", "-m", _LAUNCHER_MODULE, str(theirs.fileno()), forking.ROOM_FOR_ARGUMENTS]
            environment = spawning.build_environment({"PYTHONPATH": str(SOURCE_ROOT)}, forking.ROOM_FOR_VARIABLES)
            pid = start_detached(argv, environment=environment, log=None, files=[theirs.fileno()])
        self._process = identity.identify(pid)


_LAUNCHER: Final = _Launcher()
