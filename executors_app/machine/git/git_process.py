"""Processes of git: its program and environment, its output with a limit, and its end.

Two modules start git and use these: ``workspace_git``, and ``executors_app.repositories.git`` of the control plane.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Final

from executors_app.wire.errors import RepositoryUnusable

_TERM_GRACE: Final = 2.0
"""Seconds in which git may remove its lock files before it is killed."""

SAFE_SETTINGS: Final = (
    f"core.hooksPath={os.devnull}",
    "core.fsmonitor=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "submodule.recurse=false",
)
"""Settings with which git neither runs a program of a repository nor starts work in the background."""


def setting_options(settings: Iterable[str]) -> tuple[str, ...]:
    """Return git's options that override settings, each given as ``key=value``."""
    options: list[str] = []
    for setting in settings:
        options += ["-c", setting]
    return tuple(options)


def subcommand(arguments: Sequence[str]) -> str:
    """Return git's subcommand: the first word that is neither an option nor a setting."""
    return next((word for word in arguments if word[:1].isalpha() and "=" not in word), "")


class CappedOutput:
    """Output of a pipe: its first ``limit`` bytes and one more, or its last ones if ``limit`` is negative."""

    def __init__(self, pipe: IO[bytes] | None, limit: int):
        self.pipe, self.limit, self.data = pipe, limit, bytearray()

    def append(self, data: bytes) -> bool:
        """Add output; return False once there is more than ``limit``."""
        self.data.extend(data)
        if self.limit < 0:
            del self.data[: self.limit]
            return True
        return len(self.data) <= self.limit

    @property
    def text(self) -> str:
        """The output as text, for an error message."""
        return self.data.decode("utf-8", "replace").strip()


def read_outputs(outputs: Iterable[CappedOutput], deadline: float) -> bool:
    """Read pipes until all have ended; return False if one has exceeded its limit. Raises TimeoutError."""
    with selectors.DefaultSelector() as selector:
        for output in outputs:
            if output.pipe:
                selector.register(output.pipe, selectors.EVENT_READ, output)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                data = os.read(key.fd, 1 << 18)
                if not data:
                    selector.unregister(key.fileobj)
                elif not key.data.append(data):
                    return False
    return True


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End a git that leads its own process group, if it still runs: TERM, then KILL; and close its pipes."""
    for number, seconds in ((signal.SIGTERM, _TERM_GRACE), (signal.SIGKILL, None)):
        if process.poll() is None:
            send_signal(process, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()


def send_signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal git's process group, unless git was reaped: until then no one else can have that group's id."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def memory_file(data: bytes) -> IO[bytes]:
    """Open a file in memory for git to read from: a pipe would have to be fed while the output is read."""
    source = os.fdopen(os.memfd_create("git"), "w+b")
    source.write(data)
    source.seek(0)
    return source


@cache
def git_executable() -> str:
    """Return the path of git; raises RepositoryUnusable if it is not on PATH."""
    found = shutil.which("git")
    if found is None:
        raise RepositoryUnusable("git is not on PATH.")
    return found


@cache
def git_environment() -> dict[str, str]:
    """Build git's environment from scratch: no inherited ``GIT_*`` may point git to another repository."""
    search = [str(Path(git_executable()).parent), "/usr/local/bin", "/usr/bin", "/bin"]
    return {
        "PATH": os.pathsep.join(dict.fromkeys(search)),
        "HOME": str(Path.home()),
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
    }
