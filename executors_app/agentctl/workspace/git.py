"""git in the workspace: without hooks, fsmonitor or transports, and always within bounds (rule 38).

The repository's own configuration belongs to the agent, so whatever in it could turn git to another
directory or start a program on a mere look is overruled here. All calls block.
"""

from __future__ import annotations

import contextlib
import os
import selectors
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

OUTPUT_LIMIT: Final = 8 << 20
"""Bytes of output that are read; git is ended where it says more."""
TIMEOUT: Final = 30.0
_WORDS: Final = 1000
_TERM_GRACE: Final = 2.0
"""Seconds in which git removes its lock files before it is killed."""

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
    """git could not do what was asked; ``exit_code`` is None where it did not end by itself."""

    def __init__(self, message: str, exit_code: int | None = None):
        super().__init__(Code.GIT_FAILED, message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class GitOutput:
    """What git wrote to its standard output."""

    data: bytes
    truncated: bool
    exit_code: int | None
    """None where git was ended because it said too much."""

    @property
    def text(self) -> str:
        """Without the last line end."""
        return self.data.decode("utf-8", "surrogateescape").rstrip("\n")

    @property
    def fields(self) -> list[bytes]:
        """Of an output in the ``-z`` format; a field that was cut is left out."""
        return self.data.split(b"\0")[:-1]


class WorkspaceGit:
    """Runs git in one workspace; ``marker`` marks its processes as this execution's."""

    def __init__(self, root: Path, marker: Mapping[str, str]):
        self.root = root
        self._marker = marker
        self._live: set[subprocess.Popen[bytes]] = set()

    @property
    def has_repository(self) -> bool:
        """Whether there is anything for git to look at; asks no git."""
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
        """Run git and return what it said, ``limit`` bytes at most; GitFailed with its own words."""
        if not self.has_repository:  # without one git would compare any two files
            raise GitError("the workspace is not a git repository")
        until = time.monotonic() + timeout
        with os.fdopen(os.memfd_create("git"), "w+b") as source:
            source.write(stdin)
            source.seek(0)
            process = self._start(arguments, source, environment or {})
        verb = _subcommand(arguments)
        try:
            data, words, truncated = _collect(process, limit, until)
            code = None if truncated else process.wait(max(0.1, until - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise GitError(f"git {verb} did not end within {timeout:g} s") from None
        finally:
            self._end(process)
        if code is not None and code not in good:
            raise GitError(f"git {verb} failed: {words or f'exit code {code}'}", code)
        return GitOutput(data, truncated, code)

    def text(self, *arguments: str, **options: Any) -> str:
        """``run`` for what is short: the text alone."""
        return self.run(*arguments, **options).text

    def close(self) -> None:
        """End what still runs."""
        for process in list(self._live):
            _send_signal(process, signal.SIGKILL)

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
        # The work tree is named: the repository's own configuration could name another.
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

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Take git in, ended if need be."""
        for number, patience in ((signal.SIGTERM, _TERM_GRACE), (signal.SIGKILL, None)):
            if process.poll() is None:
                _send_signal(process, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(patience)
        self._live.discard(process)
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()


def _send_signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # Not taken in yet, so the group's number is nobody else's.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def _collect(process: subprocess.Popen[bytes], limit: int, until: float) -> tuple[bytes, str, bool]:
    """Output, the last words on standard error, and whether there was more output; TimeoutError."""
    out, words = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for pipe, kept in ((process.stdout, out), (process.stderr, words)):
            if pipe:
                selector.register(pipe, selectors.EVENT_READ, kept)
        while selector.get_map() and len(out) <= limit:
            ready = selector.select(max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                key.data.extend(data)
                if not data:
                    selector.unregister(key.fileobj)
            del words[:-_WORDS]
    return bytes(out[:limit]), words.decode("utf-8", "replace").strip(), len(out) > limit


def _subcommand(arguments: Sequence[str]) -> str:
    """What was asked of git, without the options before it."""
    return next((word for word in arguments if word[:1].isalpha() and "=" not in word), "")
