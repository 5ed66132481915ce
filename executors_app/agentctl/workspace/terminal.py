"""A shell on a terminal of its own: started, sized, signalled; its bytes are somebody else's business."""

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

from executors_app.agentctl import child_environment, two_users
from executors_app.agentctl.child_environment import SHELL_MARKER

LONGEST_SIDE: Final = 1000
_SHELLS: Final = ("/bin/bash", "/bin/sh")
_STARTER: Final = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.umask(0o022)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Takes the terminal for its own, and forgets what agentctl ignores; a child without a fork in between."""


class Terminal:
    """One shell and our end of its terminal, ``fd``, which never blocks; OSError where it cannot be started."""

    def __init__(self, cwd: Path, marker: Mapping[str, str], columns: int, rows: int):
        self.mark = uuid.uuid4().hex
        """Marks all that the shell starts."""
        environment = child_environment.build({"TERM": "xterm-256color", "PWD": str(cwd)}, marker)
        argv = [sys.executable, "-I", "-S", "-c", _STARTER, _shell(environment)]
        self.fd, far_end = os.openpty()
        try:
            os.set_blocking(self.fd, False)
            self.resize(columns, rows)
            self._process = subprocess.Popen(
                argv,
                env={**environment, SHELL_MARKER: self.mark},
                cwd=cwd,
                stdin=far_end,
                stdout=far_end,
                stderr=far_end,
                start_new_session=True,
                **two_users.of_children(),
            )
        except BaseException:
            os.close(self.fd)
            raise
        finally:
            os.close(far_end)
        self.pid = self._process.pid
        self.death = os.pidfd_open(self.pid)
        """Readable once the shell has ended."""

    def resize(self, columns: int, rows: int) -> None:
        """Tell the shell how large its window is."""
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def hang_up(self) -> None:
        """Tell the shell, and through it its jobs, that nobody is there any more."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGHUP)

    def kill(self) -> None:
        """End the shell, whatever it does."""
        self._process.kill()

    def take_in(self) -> int:
        """The exit code of a shell that has ended; negative for a signal."""
        return self._process.wait()

    def close(self) -> None:
        """Give the terminal back."""
        os.close(self.death)
        os.close(self.fd)


def _shell(environment: Mapping[str, str]) -> str:
    """The user's own shell, or one that every machine has."""
    wanted = (environment.get("SHELL", ""), *_SHELLS)
    return next((path for path in wanted if path.startswith("/") and shutil.which(path)), _SHELLS[-1])
