"""Run git in a repository that an agent can write to: no hooks, no fsmonitor, and always a time limit.

The repository belongs to the agent, so git runs with the agent's rights, never with agentctl's own. The control plane
takes only the helpers for git processes from here; it runs git itself in ``executors_app.repositories.git``.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import IO, ClassVar, Final

from executors_app.agentctl.process import spawning
from executors_app.errors import RepositoryUnusable

SAFE_OPTIONS: Final = (
    *("-c", f"core.hooksPath={os.devnull}"),
    *("-c", "core.fsmonitor=false"),
    *("-c", "gc.auto=0"),
    *("-c", "maintenance.auto=false"),
    *("-c", "submodule.recurse=false"),
)

_UMASK: Final = 0o022
"""Umask for files in a work tree: other users of a sandbox must be able to read them, as with anyone's git."""
_WRITE_TIMEOUT: Final = 600.0
_TERM_GRACE: Final = 2.0
"""Seconds in which git may remove its lock files before it is killed."""


class RepositoryGitFailed(RepositoryUnusable):
    """git failed, or did not finish in time."""

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

    ``timeout`` is in seconds. ``hold`` are file descriptors of locks, which git inherits, so that a lock outlasts a
    caller that is killed. ``index`` replaces the repository's own index. ``stdin`` is data, or a file that git reads
    from its current position. ``umask`` applies to files that git creates. Raises RepositoryGitFailed with git's own
    message.
    """
    argv = [git_executable(), "-C", str(directory), *SAFE_OPTIONS, *arguments]
    environment = _ceiling_directory(directory)
    if index is not None:
        environment["GIT_INDEX_FILE"] = str(index)
    try:
        done = subprocess.run(
            argv,
            env=git_environment() | environment,
            capture_output=True,
            timeout=timeout,
            check=False,
            pass_fds=tuple(hold),
            umask=umask,
            **({"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}),
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
        raise RepositoryGitFailed(
            f"git {subcommand(arguments)} failed in {directory}: {message}", exit_code=done.returncode
        )
    output: bytes = done.stdout
    return output.decode("utf-8", "surrogateescape").rstrip("\n")


def write_git(directory: Path, *arguments: str, into: IO[bytes], limit: int) -> None:
    """Write at most ``limit`` bytes of git's output to an open file; raises RepositoryGitFailed, also beyond that.

    git inherits the open file and never opens its path, so an agent that replaces the path gains nothing.
    """
    process = subprocess.Popen(
        [git_executable(), "-C", str(directory), *SAFE_OPTIONS, *arguments],
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
