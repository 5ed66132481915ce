"""Run git in a workspace: in a repository that an agent can write to, with the agent's rights and a time limit.

For showing and saving what an agent has done: every setting that could point git to another directory, or start a
program while git only reads, is overridden, and its processes are marked as the execution's. Workspaces are made and
rebuilt by ``repository_git``; the control plane has a module of its own, ``executors_app.repositories.git``. All calls
block.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from executors_app.machine.costly_work import begin_costly_work
from executors_app.machine.git import git_failures
from executors_app.machine.git.answered_pipes import answered_pipes
from executors_app.machine.git.endless_files import find_pipes
from executors_app.machine.git.git_process import (
    SAFE_SETTINGS,
    CappedOutput,
    end_process,
    memory_file,
    read_outputs,
    send_signal,
    setting_options,
    subcommand,
)
from executors_app.machine.git.private_git_directory import PrivateGitDirectory
from executors_app.machine.git.ref_locks import move_ref, place_of_moved_ref
from executors_app.machine.process import spawning
from executors_app.wire.protocol import ApiError, Code

_SETTINGS: Final = (
    "core.splitIndex=false",
    "core.untrackedCache=false",
    "core.quotePath=false",
    "core.fsync=objects,reference",
    "core.fsyncMethod=batch",
    "protocol.allow=never",
    "commit.gpgSign=false",
    "log.showSignature=false",
    "advice.addEmbeddedRepo=false",
)
_WORKSPACE_OPTIONS: Final = (*setting_options([*SAFE_SETTINGS, *_SETTINGS]), "--no-pager")
OUTPUT_LIMIT: Final = 8 << 20
"""Bytes of output that are read; a git that writes more is ended."""
TIMEOUT: Final = 30.0
_ERROR_BYTES: Final = 1000
_SETTINGS_SECONDS: Final = 3.0
"""Maximum time for the settings of a submodule, which can include a pipe."""
_SUBMODULE_SETTING: Final = re.compile(
    rb"(?:core\.(?:filemode|symlinks)|extensions\..+|remote\..+\.(?:promisor|partialclonefilter))(?:\n|$)", re.DOTALL
)
"""What applies of a submodule's own settings. No filter: its program would run with the agent's rights."""


class GitError(ApiError):
    """git failed; ``exit_code`` is None if it was killed."""

    def __init__(self, message: str, exit_code: int | None = None, failure: str = ""):
        super().__init__(Code.GIT_FAILED, message)
        self.exit_code = exit_code
        self.failure = failure
        """Name of the known cause (``git_failures``); empty for an unknown one."""


@dataclass(frozen=True, slots=True)
class GitOutput:
    """What git wrote to its standard output."""

    data: bytes
    truncated: bool
    exit_code: int | None
    """None if git was ended because it wrote too much."""
    errors: str = ""
    """The end of its standard error."""

    @property
    def text(self) -> str:
        """The output as text, without the last line end."""
        return self.data.decode("utf-8", "surrogateescape").rstrip("\n")

    @property
    def fields(self) -> list[bytes]:
        """The fields of an output in the ``-z`` format, without one that was cut off."""
        return self.data.split(b"\0")[:-1]


class WorkspaceGit:
    """Runs git in one workspace; ``marker`` marks its processes as this execution's.

    ``hold`` are descriptors of locks, which git inherits. Of the settings in a submodule's own files, only those apply
    that say which objects it has and what its file system can do.
    """

    def __init__(self, root: Path, marker: Mapping[str, str], *, hold: Sequence[int] = (), is_submodule: bool = False):
        self.root = root
        self._marker, self._hold, self.is_submodule = marker, tuple(hold), is_submodule
        self.deadline: float | None = None
        """When the last git here must have ended, however many there are (``time.monotonic``); None for never."""
        self.pipes_below: list[Path] = []
        """Pipes deeper in the workspace for which git has waited, and which are answered from then on."""
        self._live: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self.private = PrivateGitDirectory(root, self._list_settings)
        """Where git runs with allowed settings only."""

    @property
    def has_repository(self) -> bool:
        """Whether the workspace is a git repository; runs no git."""
        return (self.root / ".git").exists()

    def run(
        self,
        *arguments: str,
        stdin: bytes | IO[bytes] = b"",
        environment: Mapping[str, str] | None = None,
        limit: int = OUTPUT_LIMIT,
        timeout: float = TIMEOUT,
        good: Sequence[int] = (0,),
        all_settings: bool = False,
    ) -> GitOutput:
        """Run git and return at most ``limit`` bytes of its output; raises GitError with git's own message.

        ``all_settings``: in the repository itself, with its whole configuration, which is needed to write its index or
        HEAD. Otherwise only allowed settings apply. A ref is moved even if a killed git has left its lock file.
        """
        options: dict[str, Any] = {"environment": environment, "limit": limit, "good": good}
        run = partial(self._run_once, *arguments, stdin=stdin, all_settings=all_settings, **options)
        place = place_of_moved_ref(self.root, arguments)
        with answered_pipes(self._pipes()):
            if place is None:
                return run(timeout=timeout)
            until = time.monotonic() + timeout
            return move_ref(lambda held: run(timeout=until - time.monotonic(), hold=held), place, timeout)

    def _pipes(self) -> list[Path]:
        """Return the pipes that git would wait for; a submodule with one is not examined at all."""
        if self.is_submodule:
            return []
        return [*find_pipes(self.root), *(path for path in self.pipes_below if path.is_fifo())]

    def _run_once(
        self,
        *arguments: str,
        stdin: bytes | IO[bytes],
        environment: Mapping[str, str] | None,
        limit: int,
        timeout: float,
        good: Sequence[int],
        all_settings: bool,
        hold: Sequence[int] = (),
    ) -> GitOutput:
        if not self.has_repository:  # outside of a repository, git diff would compare any two files
            raise GitError("the workspace is not a git repository")
        if self.deadline is not None:
            timeout = min(timeout, self.deadline - time.monotonic())
            if timeout <= 0:
                raise GitError("the time for work in this repository is over")
        until = time.monotonic() + timeout
        variables: dict[str, str] = {}
        if not all_settings:
            variables |= self._private_environment()
        variables |= environment or {}
        with _input_file(stdin) as source:
            process = self._start(arguments, source, variables, hold)
        output, errors = CappedOutput(process.stdout, limit), CappedOutput(process.stderr, -_ERROR_BYTES)
        try:
            truncated, code = not read_outputs([output, errors], until), None
            if not truncated:
                code = process.wait(max(0.1, until - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise GitError(f"git {subcommand(arguments)} did not finish within {timeout:g} s") from None
        finally:
            end_process(process)
            self._live.discard(process)
        if code is not None and code not in good:
            raise _git_error(arguments, errors.text, code)
        return GitOutput(bytes(output.data[:limit]), truncated, code, errors.text)

    def compare(self, *arguments: str, environment: Mapping[str, str] | None = None, **options: Any) -> GitOutput:
        """Run a git that compares files with the index; with a filter that fails, compare their content as it is.

        Such a file then counts as changed, instead of hiding the state of all others.
        """
        try:
            return self.run(*arguments, environment=environment, **options)
        except GitError as error:
            if error.failure not in git_failures.FILTER_FAILURES:
                raise
        lenient = {**self._private_environment(lenient=True), **(environment or {})}
        return self.run(*arguments, environment=lenient, **options)

    def text(self, *arguments: str, **options: Any) -> str:
        """``run``, and return the output as text."""
        return self.run(*arguments, **options).text

    def pipe(
        self,
        arguments: Sequence[str],
        target: WorkspaceGit,
        target_arguments: Sequence[str],
        *,
        stdin: bytes,
        timeout: float,
        environment: Mapping[str, str] | None = None,
    ) -> GitOutput:
        """Pass the output of git here to a git in ``target``, with this environment; raises GitError."""
        with memory_file(stdin) as source:
            process = self._start(arguments, source, self._private_environment())
        try:
            assert process.stdout is not None  # noqa: S101
            output = target.run(*target_arguments, stdin=process.stdout, timeout=timeout, environment=environment)
            if code := process.wait(timeout):
                raise GitError(f"git {subcommand(arguments)} failed: exit code {code}", code)
            return output
        except subprocess.TimeoutExpired:
            raise GitError(f"git {subcommand(arguments)} did not finish within {timeout:g} s") from None
        finally:
            end_process(process)
            self._live.discard(process)

    def inside(self, root: Path) -> WorkspaceGit:
        """Return git for a submodule inside this workspace; the caller closes it."""
        return WorkspaceGit(root, self._marker, hold=self._hold, is_submodule=True)

    def close(self) -> None:
        """Kill every git that still runs."""
        for process in list(self._live):
            send_signal(process, signal.SIGKILL)
        self.private.close()

    def _private_environment(self, *, lenient: bool = False) -> dict[str, str]:
        try:
            with self._lock:
                return self.private.environment(lenient=lenient) or {}
        except OSError as error:
            message = f"the workspace is not a git repository that can be read: {error.strerror}"
            if error.filename:
                message += f": {error.filename}"
            raise GitError(message) from error

    def _list_settings(self) -> list[bytes]:
        seconds = TIMEOUT
        if self.is_submodule:
            seconds = _SETTINGS_SECONDS
        fields = self.run("config", "--list", "-z", "--show-scope", all_settings=True, timeout=seconds).fields
        pairs = zip(fields[::2], fields[1::2], strict=False)
        return [entry for scope, entry in pairs if self._may_apply(scope, entry)]

    def _may_apply(self, scope: bytes, entry: bytes) -> bool:
        is_own = scope in (b"local", b"worktree")
        return not (self.is_submodule and is_own) or _SUBMODULE_SETTING.match(entry) is not None

    def _start(
        self, arguments: Sequence[str], stdin: IO[bytes], environment: Mapping[str, str], hold: Sequence[int] = ()
    ) -> subprocess.Popen[bytes]:
        built = spawning.build_environment(
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
        argv = [executable, "-C", str(self.root), f"--work-tree={self.root}", *_WORKSPACE_OPTIONS, *arguments]
        begin_costly_work("git")
        try:
            process = subprocess.Popen(
                argv,
                env=built,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                pass_fds=(*self._hold, *hold),
                **spawning.child_user_arguments(),
            )
        except (OSError, ValueError) as error:
            raise GitError(f"git could not be started: {error}") from error
        self._live.add(process)
        return process


def _input_file(stdin: bytes | IO[bytes]) -> contextlib.AbstractContextManager[IO[bytes]]:
    if isinstance(stdin, bytes):
        return memory_file(stdin)
    return contextlib.nullcontext(stdin)


def _git_error(arguments: Sequence[str], errors: str, exit_code: int) -> GitError:
    """Return the error for a failed git: with the cause and the next step if they are known."""
    message = f"git {subcommand(arguments)} failed: {errors or f'exit code {exit_code}'}"
    known = git_failures.explain_failure(errors)
    if known is None:
        return GitError(message, exit_code)
    return GitError(f"{known.sentence} {message}", exit_code, known.name)
