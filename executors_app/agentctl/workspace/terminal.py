"""A shell process in a terminal of its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import termios
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from executors_app.machine.process import spawning
from executors_app.machine.process.spawning import SHELL_MARKER

_SHELLS: Final = ("/bin/bash", "/bin/sh")
_STARTER: Final = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.umask(0o022)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Makes the terminal the controlling one and resets SIGHUP, which agentctl ignores, then executes the shell."""


class Terminal:
    """One shell process and ``fd``, our non-blocking end of its terminal. Raises OSError if it cannot start."""

    def __init__(self, cwd: Path, marker: Mapping[str, str], columns: int, rows: int):
        self.marker = uuid.uuid4().hex
        """Marks everything that the shell starts."""
        environment = spawning.build_environment({"TERM": "xterm-256color", "PWD": str(cwd)}, marker)
        argv = [sys.executable, "-I", "-S", "-c", _STARTER, _shell_program(environment)]
        self.fd, far_end = os.openpty()
        try:
            os.set_blocking(self.fd, False)
            self.resize(columns, rows)
            self._process = subprocess.Popen(
                argv,
                env={**environment, SHELL_MARKER: self.marker},
                cwd=cwd,
                stdin=far_end,
                stdout=far_end,
                stderr=far_end,
                start_new_session=True,
                **spawning.child_user_arguments(),
            )
        except BaseException:
            os.close(self.fd)
            raise
        finally:
            os.close(far_end)
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)
        """A pidfd, readable once the shell has ended."""

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of the terminal."""
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def request_redraw(self) -> None:
        """Change the size and back: the kernel sends SIGWINCH only for a real change."""
        rows, columns, *_ = struct.unpack("HHHH", fcntl.ioctl(self.fd, termios.TIOCGWINSZ, bytes(8)))
        self.resize(columns, max(1, rows - 1))
        self.resize(columns, rows)

    def hang_up(self) -> None:
        """Send SIGHUP to the shell's process group."""
        if self._process.returncode is None:  # not reaped yet: no one else can have its process group's id
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGHUP)

    def kill(self) -> None:
        """Kill the shell."""
        self._process.kill()

    def reap(self) -> int:
        """Reap an ended shell and return its exit code, negative for a signal."""
        return self._process.wait()

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.pidfd)
        os.close(self.fd)


def _shell_program(environment: Mapping[str, str]) -> str:
    """Return the user's own shell, or a standard one."""
    wanted = (environment.get("SHELL", ""), *_SHELLS)
    return next((path for path in wanted if path.startswith("/") and shutil.which(path)), _SHELLS[-1])
