"""Run git in a repository as it is configured, without hooks and fsmonitor.

For making, finding and rebuilding workspaces. All calls block.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from executors_app.machine.costly_work import begin_costly_work
from executors_app.machine.git import git_failures
from executors_app.machine.git.git_process import (
    SAFE_SETTINGS,
    git_environment,
    git_executable,
    setting_options,
    subcommand,
)
from executors_app.machine.git.ref_locks import move_ref, place_of_moved_ref
from executors_app.machine.process import spawning
from executors_app.wire.errors import RepositoryUnusable

_REPOSITORY_OPTIONS: Final = setting_options([*SAFE_SETTINGS, "safe.bareRepository=all"])
"""For repositories that were named to us: a user's settings may forbid git to find a bare one by its directory."""
_UMASK: Final = 0o022
"""Umask for files in a work tree: other users of a sandbox must be able to read them, as with anyone's git."""
_WRITE_TIMEOUT: Final = 600.0


class RepositoryGitFailed(RepositoryUnusable):
    """git failed, or did not finish in time; ``permanent``: it will fail again until somebody changes something."""

    def __init__(self, message: str, *, permanent: bool = False, **details: Any):
        super().__init__(message, **details)
        self.permanent = permanent


def git_failure(arguments: Sequence[str], directory: Path, message: str, exit_code: int) -> RepositoryGitFailed:
    """Return the error for a failed git: with the cause and the next step if they are known, and with git's words."""
    full_message = f"git {subcommand(arguments)} failed in {directory}: {message}"
    known = git_failures.explain_failure(message)
    if known is None:
        return RepositoryGitFailed(full_message, exit_code=exit_code)
    return RepositoryGitFailed(
        f"{known.sentence} ({full_message})", permanent=known.permanent, exit_code=exit_code, failure=known.name
    )


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

    ``timeout`` is in seconds. ``hold`` are file descriptors of locks, which git inherits, so that a lock outlasts a
    caller that is killed. ``index`` replaces the repository's own index. ``stdin`` is data, or a file that git reads
    from its current position. ``umask`` applies to files that git creates. A ref is moved even if a killed git has left
    its lock file. Raises RepositoryGitFailed with git's own message.
    """
    run = partial(_run_once, directory, *arguments, timeout=timeout, index=index, stdin=stdin, umask=umask)
    place = place_of_moved_ref(directory, arguments)
    if place is None:
        return run(hold=hold)
    return move_ref(lambda held: run(hold=(*hold, *held)), place, timeout)


def _run_once(
    directory: Path,
    *arguments: str,
    timeout: float,
    hold: Sequence[int],
    index: Path | None,
    stdin: bytes | IO[bytes],
    umask: int,
) -> str:
    argv = [git_executable(), "-C", str(directory), *_REPOSITORY_OPTIONS, *arguments]
    environment = _ceiling_directory(directory)
    if index is not None:
        environment["GIT_INDEX_FILE"] = str(index)
    source: dict[str, Any] = {"stdin": stdin}
    if isinstance(stdin, bytes):
        source = {"input": stdin}
    begin_costly_work("git")
    try:
        done = subprocess.run(
            argv,
            env=git_environment() | environment,
            capture_output=True,
            timeout=timeout,
            check=False,
            pass_fds=tuple(hold),
            umask=umask,
            **source,
            **spawning.child_user_arguments(),
        )
    except subprocess.TimeoutExpired as error:
        raise RepositoryGitFailed(
            f"git {subcommand(arguments)} did not finish within {timeout:g} s in {directory}."
        ) from error
    except OSError as error:
        raise RepositoryGitFailed(f"git could not be started in {directory}: {error}") from error
    if done.returncode:
        message = done.stderr.decode("utf-8", "replace").strip()[-1000:]
        raise git_failure(arguments, directory, message, done.returncode)
    output: bytes = done.stdout
    return output.decode("utf-8", "surrogateescape").rstrip("\n")


def write_git(directory: Path, *arguments: str, into: IO[bytes], limit: int) -> None:
    """Write at most ``limit`` bytes of git's output to an open file; raises RepositoryGitFailed, also beyond that.

    git inherits the open file and never opens its path, so an agent that replaces the path gains nothing.
    """
    begin_costly_work("git")
    process = subprocess.Popen(
        [git_executable(), "-C", str(directory), *_REPOSITORY_OPTIONS, *arguments],
        env=git_environment() | _ceiling_directory(directory),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        **spawning.child_user_arguments(),
    )
    deadline, size = threading.Timer(_WRITE_TIMEOUT, process.kill), 0
    deadline.start()
    try:
        with process:
            while process.stdout and (data := process.stdout.read(1 << 16)):
                size += len(data)
                if size > limit:
                    process.kill()
                    break
                into.write(data)
    finally:
        deadline.cancel()
    if size > limit:
        raise RepositoryGitFailed(
            f"git {subcommand(arguments)} wrote more than {limit >> 20} MiB of output.", exit_code=0
        )
    if process.returncode:
        raise RepositoryGitFailed(f"git {subcommand(arguments)} failed in {directory}.", exit_code=process.returncode)


def _ceiling_directory(directory: Path) -> dict[str, str]:
    """Return the variable that keeps git from finding a repository in a parent directory."""
    return {"GIT_CEILING_DIRECTORIES": str(directory.absolute().parent)}


def common_directory(repository: Path) -> Path:
    """Return the directory that a repository's worktrees share; raises RepositoryUnusable if it is no repository."""
    if not repository.is_dir():
        raise RepositoryUnusable(f"The repository {repository} does not exist.")
    try:
        return Path(run_git(repository, "rev-parse", "--path-format=absolute", "--git-common-dir"))
    except RepositoryGitFailed as error:
        if "exit_code" not in error.details:
            raise
        raise RepositoryUnusable(f"{repository} is not a usable git repository: {error.message}") from error


def resolve_commit(repository: Path, revision: str) -> str | None:
    """Return the commit that a branch, tag or id names; None if it names none."""
    if not revision or revision.startswith("-"):
        return None
    try:
        return run_git(repository, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except RepositoryGitFailed as error:
        if error.details.get("exit_code") is None:
            raise
        return None
