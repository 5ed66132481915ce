"""Starts a process that has nothing to do with its starter: it survives a ``kill -9`` of the whole group."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

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


def start_detached(argv: Sequence[str], *, environment: Mapping[str, str], log_file: Path) -> int:
    """Start ``argv`` (an absolute path first) in a session of its own, as a child of init; returns its pid.

    It inherits neither descriptors nor environment, signal mask or directory of the caller; its
    output is appended to ``log_file``. Two forks with a setsid between: a plain child would die
    with the caller's group, or stay its zombie. Raises OSError, subprocess.SubprocessError.
    """
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
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
            timeout=30,
            check=True,
        )
    finally:
        os.close(log)
    return int(starter.stdout)
