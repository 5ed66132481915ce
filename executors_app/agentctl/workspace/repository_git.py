"""Git as agentctl runs it where the agent works: no hooks, no fsmonitor, and always a time limit (rule 38).

The repository belongs to the agent, so git runs with the agent's rights and never with agentctl's own. The control
plane does not use this module: it runs git in ``executors_app.repositories`` alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, ClassVar, Final

from executors_app.agentctl.process import privilege_drop
from executors_app.errors import RepositoryUnusable

SAFE_OPTIONS: Final = (
    *("-c", f"core.hooksPath={os.devnull}"),
    *("-c", "core.fsmonitor=false"),
    *("-c", "gc.auto=0"),
    *("-c", "maintenance.auto=false"),
    *("-c", "submodule.recurse=false"),
)

_UMASK: Final = 0o022
"""Of the files in a work tree: as people's own git makes them, whoever else has to read them in a sandbox."""


class RepositoryGitFailed(RepositoryUnusable):
    """git could not do what was asked of it."""

    permanent: ClassVar[bool] = False


def run_git(
    directory: Path,
    *arguments: str,
    timeout: float = 60.0,
    hold: Sequence[int] = (),
    index: Path | None = None,
    stdin: bytes | IO[bytes] = b"",
    umask: int = _UMASK,
) -> str:
    """Run git in ``directory`` and return its output without the last line end.

    ``timeout`` is in seconds. ``hold`` are file descriptors (locks) that git keeps open as long as it lives, so that
    a lock outlasts a caller that dies first. ``index`` replaces the repository's own index. ``stdin`` is data, or a
    file that git reads from its current position. ``umask`` is of the files that git makes. Raises GitFailed with
    git's own message.
    """
    argv = [_executable(), "-C", str(directory), *SAFE_OPTIONS, *arguments]
    more = _ceiling_directory(directory)
    if index is not None:
        more["GIT_INDEX_FILE"] = str(index)
    try:
        done = subprocess.run(
            argv,
            env=_environment() | more,
            capture_output=True,
            timeout=timeout,
            check=False,
            pass_fds=tuple(hold),
            umask=umask,
            **({"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}),
            **privilege_drop.child_user_arguments(),
        )
    except subprocess.TimeoutExpired as error:
        raise RepositoryGitFailed(
            f"git {_subcommand(arguments)} did not end within {timeout:g} s in {directory}."
        ) from error
    except OSError as error:
        raise RepositoryGitFailed(f"git could not be started in {directory}: {error}") from error
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip()[-1000:]
        raise RepositoryGitFailed(
            f"git {_subcommand(arguments)} failed in {directory}: {words}", exit_code=done.returncode
        )
    said: bytes = done.stdout
    return said.decode("utf-8", "surrogateescape").rstrip("\n")


def read_git(directory: Path, *arguments: str, limit: int, timeout: float = 20.0) -> bytes:
    """Run a git that only looks, and return ``limit`` bytes of its output at most; raises GitFailed."""
    with _start_reading(directory, arguments, timeout) as process:
        said = _output(process).read(limit)
        more = len(said) == limit
        if more:
            process.kill()
    if process.returncode and not more:
        raise RepositoryGitFailed(f"git {_subcommand(arguments)} failed in {directory}.", exit_code=process.returncode)
    return said


def write_git(directory: Path, *arguments: str, into: IO[bytes], limit: int, timeout: float = 600.0) -> None:
    """Write git's output to an open file; raises GitFailed, also where there are more than ``limit`` bytes.

    The file is ours and git never opens it, so nothing that the agent puts in its place is written or read.
    """
    size = 0
    with _start_reading(directory, arguments, timeout) as process:
        while data := _output(process).read(1 << 16):
            size += len(data)
            if size > limit:
                process.kill()
                break
            into.write(data)
    if size > limit:
        raise RepositoryGitFailed(
            f"git {_subcommand(arguments)} has more than {limit >> 20} MiB of output.", exit_code=0
        )
    if process.returncode:
        raise RepositoryGitFailed(f"git {_subcommand(arguments)} failed in {directory}.", exit_code=process.returncode)


@contextmanager
def _start_reading(directory: Path, arguments: Sequence[str], timeout: float) -> Iterator[subprocess.Popen[bytes]]:
    """A git whose output is read; killed after ``timeout`` seconds."""
    argv = [_executable(), "-C", str(directory), *SAFE_OPTIONS, *arguments]
    process = subprocess.Popen(
        argv,
        env=_environment() | _ceiling_directory(directory),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        **privilege_drop.child_user_arguments(),
    )
    deadline = threading.Timer(timeout, process.kill)
    deadline.start()
    try:
        with process:
            yield process
    finally:
        deadline.cancel()


def _output(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None  # noqa: S101  (asked for)
    return process.stdout


def _ceiling_directory(directory: Path) -> dict[str, str]:
    """What keeps git from taking a repository above for the one that was meant."""
    return {"GIT_CEILING_DIRECTORIES": str(directory.absolute().parent)}


def _subcommand(arguments: Sequence[str]) -> str:
    """What was asked of git, without the options before it."""
    return next((word for word in arguments if word.replace("-", "").isalpha() and word[0] != "-"), "")


def common_directory(repository: Path) -> Path:
    """Where a repository keeps what its worktrees share; raises RepositoryUnusable if it is none."""
    if not repository.is_dir():
        raise RepositoryUnusable(f"The repository {repository} does not exist.")
    try:
        return Path(run_git(repository, "rev-parse", "--path-format=absolute", "--git-common-dir"))
    except RepositoryGitFailed as error:
        if "exit_code" not in error.details:
            raise
        raise RepositoryUnusable(f"{repository} is not a usable git repository: {error.message}") from error


def resolve_commit(repository: Path, revision: str) -> str | None:
    """The commit that a branch, tag or id names; None if it names none."""
    if not revision or revision.startswith("-"):
        return None
    try:
        return run_git(repository, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except RepositoryGitFailed as error:
        if error.details.get("exit_code") is None:
            raise
        return None


def is_ancestor(repository: Path, older: str, newer: str) -> bool:
    """Whether a commit is in the history of another; GitFailed."""
    try:
        run_git(repository, "merge-base", "--is-ancestor", older, newer)
    except RepositoryGitFailed as error:
        if error.details.get("exit_code") != 1:
            raise
        return False
    return True


@cache
def _executable() -> str:
    found = shutil.which("git")
    if found is None:
        raise RepositoryUnusable("git is not on PATH.")
    return found


@cache
def _environment() -> dict[str, str]:
    """Built, not inherited: no ``GIT_*`` of ours may turn git to another repository, nor a directory above."""
    search = [str(Path(_executable()).parent), "/usr/local/bin", "/usr/bin", "/bin"]
    return {
        "PATH": os.pathsep.join(dict.fromkeys(search)),
        "HOME": str(Path.home()),
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
    }
