"""Git as the workspace API runs it: without hooks, fsmonitor or transports, and with bounds on time and output.

The agent owns the repository's configuration, so every setting that could point git to another directory, or start a
program while git only reads, is overridden here. All calls block.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from executors_app.agentctl.process import child_environment, privilege_drop
from executors_app.agentctl.protocol import ApiError, Code
from executors_app.agentctl.workspace.repository_git import (
    CappedOutput,
    end_process,
    memory_file,
    read_outputs,
    send_signal,
    subcommand,
)

OUTPUT_LIMIT: Final = 8 << 20
"""Bytes of output that are read; a git that writes more is ended."""
TIMEOUT: Final = 30.0
_ERROR_BYTES: Final = 1000

SAFE_OPTIONS: Final = (
    *("-c", f"core.hooksPath={os.devnull}"),
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.splitIndex=false"),
    *("-c", "core.quotePath=false"),
    *("-c", "core.fsync=objects,reference"),
    *("-c", "core.fsyncMethod=batch"),
    *("-c", "gc.auto=0"),
    *("-c", "maintenance.auto=false"),
    *("-c", "submodule.recurse=false"),
    *("-c", "protocol.allow=never"),
    *("-c", "commit.gpgSign=false"),
    *("-c", "log.showSignature=false"),
    *("-c", "advice.addEmbeddedRepo=false"),
    "--no-pager",
)


class GitError(ApiError):
    """git failed; ``exit_code`` is None if it did not end by itself."""

    def __init__(self, message: str, exit_code: int | None = None):
        super().__init__(Code.GIT_FAILED, message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class GitOutput:
    """What git wrote to its standard output."""

    data: bytes
    truncated: bool
    exit_code: int | None
    """None if git was ended because it wrote too much."""

    @property
    def text(self) -> str:
        """The output as text, without the last line end."""
        return self.data.decode("utf-8", "surrogateescape").rstrip("\n")

    @property
    def fields(self) -> list[bytes]:
        """The fields of an output in the ``-z`` format, without one that was cut off."""
        return self.data.split(b"\0")[:-1]


class WorkspaceGit:
    """Runs git in one workspace; ``marker`` marks its processes as this execution's."""

    def __init__(self, root: Path, marker: Mapping[str, str]):
        self.root = root
        self._marker = marker
        self._live: set[subprocess.Popen[bytes]] = set()

    @property
    def has_repository(self) -> bool:
        """Whether the workspace is a git repository; runs no git."""
        return (self.root / ".git").exists()

    def run(
        self,
        *arguments: str,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        limit: int = OUTPUT_LIMIT,
        timeout: float = TIMEOUT,
        good: Sequence[int] = (0,),
    ) -> GitOutput:
        """Run git and return at most ``limit`` bytes of its output; raises GitError with git's own message."""
        if not self.has_repository:  # outside of a repository, git diff would compare any two files
            raise GitError("the workspace is not a git repository")
        until = time.monotonic() + timeout
        with memory_file(stdin) as source:
            process = self._start(arguments, source, environment or {})
        output, errors = CappedOutput(process.stdout, limit), CappedOutput(process.stderr, -_ERROR_BYTES)
        try:
            truncated = not read_outputs([output, errors], until)
            code = None if truncated else process.wait(max(0.1, until - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise GitError(f"git {subcommand(arguments)} did not end within {timeout:g} s") from None
        finally:
            end_process(process)
            self._live.discard(process)
        if code is not None and code not in good:
            raise GitError(f"git {subcommand(arguments)} failed: {errors.text or f'exit code {code}'}", code)
        return GitOutput(bytes(output.data[:limit]), truncated, code)

    def text(self, *arguments: str, **options: Any) -> str:
        """``run``, and return the output as text."""
        return self.run(*arguments, **options).text

    def close(self) -> None:
        """Kill every git that still runs."""
        for process in list(self._live):
            send_signal(process, signal.SIGKILL)

    def _start(
        self, arguments: Sequence[str], stdin: IO[bytes], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        built = child_environment.build_environment(
            {
                "LC_ALL": "C",
                "GIT_TERMINAL_PROMPT": "0",
                "GIT_OPTIONAL_LOCKS": "0",
                "GIT_NO_LAZY_FETCH": "1",
                "GIT_CEILING_DIRECTORIES": str(self.root.parent),
                **environment,
            },
            self._marker,
        )
        executable = shutil.which("git", path=built.get("PATH"))
        if executable is None:
            raise GitError("git is not on PATH")
        # The work tree is named explicitly: the repository's own configuration could name another one.
        argv = [executable, "-C", str(self.root), f"--work-tree={self.root}", *SAFE_OPTIONS, *arguments]
        try:
            process = subprocess.Popen(
                argv,
                env=built,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                **privilege_drop.child_user_arguments(),
            )
        except (OSError, ValueError) as error:
            raise GitError(f"git could not be started: {error}") from error
        self._live.add(process)
        return process
