"""Run git for the control plane: a fixed git directory, a fixed environment, limits on time, output and memory.

Nothing is discovered and nothing is inherited. ``GIT_DIR`` is always one of our own directories, so the only
repository configuration that git reads is what ``bare.py`` wrote; system and user configuration are switched off.
``SAFE_OPTIONS`` override it once more: a key that runs a program or names another path must have no effect even if
one of our directories was tampered with.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, ClassVar, Final

from executors_app.agentctl.workspace.repository_git import (
    CappedOutput,
    end_process,
    git_environment,
    git_executable,
    memory_file,
    read_outputs,
    subcommand,
)
from executors_app.errors import RepositoryUnusable

OUTPUT_LIMIT: Final = 64 << 20
"""Maximum bytes of output that one call may return."""
TIMEOUT: Final = 60.0
LONG_TIMEOUT: Final = 3600.0
"""Seconds for calls that copy a whole history."""
_ERROR_BYTES: Final = 2000

SAFE_OPTIONS: Final = (
    *("-c", f"core.hooksPath={os.devnull}"),
    *("-c", f"core.attributesFile={os.devnull}"),
    *("-c", f"core.excludesFile={os.devnull}"),
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.alternateRefsCommand=true"),
    *("-c", "core.fsync=objects,reference"),
    *("-c", "core.fsyncMethod=batch"),
    # Files beside the objects that claim to know what a commit reaches. An agent may have written them, and a
    # false claim would leave objects out.
    *("-c", "core.commitGraph=false"),
    *("-c", "core.multiPackIndex=false"),
    *("-c", "pack.useBitmaps=false"),
    *("-c", "repack.writeBitmaps=false"),
    *("-c", "gc.auto=0"),
    *("-c", "maintenance.auto=false"),
    *("-c", "submodule.recurse=false"),
    *("-c", "protocol.allow=never"),
    *("-c", "log.showSignature=false"),
    *("-c", "diff.external="),
    *("-c", "core.quotePath=false"),
    "--no-pager",
)


class GitFailed(RepositoryUnusable):
    """A git command failed or could not be run."""

    permanent: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on one git process, in bytes."""

    memory: int
    file: int
    """The longest file that it may write."""


@dataclass(frozen=True, slots=True)
class Git:
    """Runs git on ``directory`` (a git directory of ours); ``objects`` replaces its object directory."""

    directory: Path
    objects: Path | None = None

    def run(
        self,
        *arguments: str,
        stdin: bytes | IO[bytes] = b"",
        limit: int = OUTPUT_LIMIT,
        timeout: float = TIMEOUT,
        hold: Sequence[int] = (),
        bounds: Bounds | None = None,
    ) -> bytes:
        """Run git and return what it wrote; raises GitFailed, also if that is more than ``limit`` bytes.

        ``hold`` are descriptors of locks: git keeps them open while it lives, so that a lock outlasts a caller that is
        killed.
        """
        said, more = self._run(arguments, stdin, limit=limit, timeout=timeout, hold=hold, bounds=bounds)
        if more:
            raise GitFailed(f"git {subcommand(arguments)} wrote more than {limit} bytes.")
        return said

    def read(self, *arguments: str, limit: int) -> bytes:
        """Run git and return the first ``limit`` bytes of what it wrote; raises GitFailed."""
        return self._run(arguments, b"", limit=limit, timeout=TIMEOUT)[0]

    def text(self, *arguments: str) -> str:
        """``run``, as text without the last line end."""
        return self.run(*arguments).decode(errors="surrogateescape").rstrip("\n")

    def write(self, into: IO[bytes], *arguments: str, stdin: bytes) -> None:
        """Run git with its output going to an open file; raises GitFailed."""
        with memory_file(stdin) as source:
            process = self._start(arguments, source, into, ())
            _finish([(process, arguments)], [], time.monotonic() + LONG_TIMEOUT)

    def pipe(
        self, arguments: Sequence[str], other: Git, others: Sequence[str], *, stdin: bytes, hold: Sequence[int]
    ) -> bytes:
        """Run git here, pipe its output to another git, and return that one's output. Raises GitFailed."""
        with memory_file(stdin) as source:
            first = self._start(arguments, source, subprocess.PIPE, hold)
        try:
            second = other._start(others, first.stdout, subprocess.PIPE, hold)
        except GitFailed:
            end_process(first)
            raise
        if first.stdout:
            first.stdout.close()  # only the second may hold it, or the first would not notice its end
            first.stdout = None
        out = CappedOutput(second.stdout, OUTPUT_LIMIT)
        # The second first, because its error is reported: if it fails, the first only reports a broken pipe.
        _finish([(second, others), (first, arguments)], [out], time.monotonic() + LONG_TIMEOUT)
        return bytes(out.data)

    def _run(
        self,
        arguments: Sequence[str],
        stdin: bytes | IO[bytes],
        *,
        limit: int,
        timeout: float,
        hold: Sequence[int] = (),
        bounds: Bounds | None = None,
    ) -> tuple[bytes, bool]:
        until = time.monotonic() + timeout
        with memory_file(stdin) if isinstance(stdin, bytes) else contextlib.nullcontext(stdin) as source:
            process = self._start(arguments, source, subprocess.PIPE, hold, bounds)
        out = CappedOutput(process.stdout, limit)
        _finish([(process, arguments)], [out], until)
        return bytes(out.data[:limit]), len(out.data) > limit

    def _start(
        self,
        arguments: Sequence[str],
        stdin: IO[bytes] | None,
        stdout: int | IO[bytes],
        hold: Sequence[int],
        bounds: Bounds | None = None,
    ) -> subprocess.Popen[bytes]:
        environment: dict[str, str] = {**_environment(), "GIT_DIR": str(self.directory)}
        if self.objects is not None:
            environment["GIT_OBJECT_DIRECTORY"] = str(self.objects)
        try:
            return subprocess.Popen(
                [*(_limited(bounds) if bounds else ()), git_executable(), *SAFE_OPTIONS, *arguments],
                cwd=self.directory,
                env=environment,
                stdin=stdin,
                stdout=stdout,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                pass_fds=tuple(hold),
            )
        except (OSError, ValueError) as error:
            raise GitFailed(f"git {subcommand(arguments)} could not be started in {self.directory}: {error}") from error


def _finish(
    running: Sequence[tuple[subprocess.Popen[bytes], Sequence[str]]], outputs: list[CappedOutput], until: float
) -> None:
    """Wait for the end of all processes, or end them; raises GitFailed for the first that failed."""
    errors = [CappedOutput(process.stderr, -_ERROR_BYTES) for process, _ in running]
    try:
        whole = read_outputs([*outputs, *errors], until)
        codes = [process.wait(max(0.1, until - time.monotonic())) for process, _ in running] if whole else []
    except (TimeoutError, subprocess.TimeoutExpired):
        raise GitFailed(f"git {subcommand(running[0][1])} did not finish in time.") from None
    finally:
        for process, _ in running:
            end_process(process)
    for code, message, (_, arguments) in zip(codes, errors, running, strict=False):
        if code:
            text = message.text or f"exit code {code}"
            raise GitFailed(f"git {subcommand(arguments)} failed: {text}", exit_code=code)


def _limited(bounds: Bounds) -> list[str]:
    """Return the beginning of a command that starts under these limits.

    A shell sets them: limits set on a running git come too late on a busy machine, and a ``preexec_fn`` is not safe in
    a process with threads. The units are KiB of memory and blocks of 512 bytes.
    """
    set_limits = 'ulimit -v "$1" && ulimit -f "$2" && shift 2 && exec "$@"'
    return ["/bin/sh", "-c", set_limits, "sh", str(bounds.memory >> 10), str(bounds.file >> 9)]


@cache
def _environment() -> dict[str, str]:
    nowhere = "/nonexistent"
    return {
        **git_environment(),
        "HOME": nowhere,
        "XDG_CONFIG_HOME": nowhere,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "",
        "GIT_PROTOCOL_FROM_USER": "0",
        "GIT_SSH_COMMAND": "false",
        "GIT_ASKPASS": "false",
        "GIT_EDITOR": "false",
        "GIT_PAGER": "cat",
    }
