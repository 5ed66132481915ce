"""One workspace as agentctl serves it.

Made with the agent's rights before it is served or after it was deleted, reported in `GET /status`, and asked from
threads of its own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, ParamSpec, TypeVar

import orjson

from executors_app.agentctl.process import child_environment, privilege_drop
from executors_app.agentctl.protocol import ApiError, Code
from executors_app.agentctl.workspace import workspace_root
from executors_app.agentctl.workspace.git import WorkspaceGit
from executors_app.agentctl.workspace.seed import read_seed, write_seed
from executors_app.agentctl.workspace.shells import ShellManager
from executors_app.agentctl.workspace.worktrees import Worktree
from executors_app.errors import ExecutorError, LaunchFailed, RepositoryUnusable, WorkspaceGone

_SOURCE_ROOT: Final = Path(__file__).resolve().parents[3]
_MAX_ANSWER: Final = 1 << 20
_MAKE_TIMEOUT: Final = 900.0


@dataclass(frozen=True, slots=True)
class WorkspacePreparation:
    """What a workspace is made from; agentctl keeps the seed in its state directory."""

    seed_file: Path
    root: Path
    """Of the workspace; unused where the work tree is a linked one of a repository outside."""
    owner_id: str
    """The session whose work tree it is."""
    workspace: Path
    """The work tree."""

    @property
    def repository(self) -> Path:
        """The workspace's own repository, or the work tree where that is linked to one outside."""
        own = workspace_root.sandbox_repository_path(self.root)
        return own if own.is_dir() else self.workspace

    def branch(self) -> str:
        """The branch of the workspace; raises OSError, ValueError."""
        with self.seed_file.open("rb") as file:
            return read_seed(file).branch

    def make_at_start(self) -> None:
        """Make the workspace while agentctl has no threads yet. Raises ExecutorError, OSError, ValueError.

        In a container the work is done by a forked child that has become the agent's user: git may run what the
        repository's configuration names, and neither that nor a symbolic link may reach agentctl's own files.
        """
        with self.seed_file.open("rb") as file:
            answer = (
                _run_in_child(partial(self._make, file)) if privilege_drop.child_user_arguments() else self._make(file)
            )
        self._settle(answer)

    def again(self) -> None:
        """Make what is missing of the workspace while agentctl serves; blocks. Raises as ``at_start``."""
        with self.seed_file.open("rb") as file:
            answer = self._in_process(file) if privilege_drop.child_user_arguments() else self._make(file)
        self._settle(answer)

    def _make(self, file: IO[bytes]) -> dict[str, Any]:
        make = partial(workspace_root.make_workspace_from_file, file, self.root, self.owner_id, self.workspace)
        return workspace_root.run_and_answer(make)

    def _in_process(self, file: IO[bytes]) -> dict[str, Any]:
        """As ``_in_child``, but a process with threads cannot fork and go on in Python."""
        options = {"--root": self.root, "--owner": self.owner_id, "--worktree": self.workspace}
        words = [str(word) for option in options.items() for word in option]
        done = subprocess.run(
            [sys.executable, "-P", "-m", workspace_root.__name__, "make", *words],
            stdin=file,
            capture_output=True,
            timeout=_MAKE_TIMEOUT,
            check=False,
            env=child_environment.build_environment({"PYTHONPATH": str(_SOURCE_ROOT)}, {}),
            **privilege_drop.child_user_arguments(),
        )
        return _parse_child_answer(done.stdout)

    def _settle(self, answer: dict[str, Any]) -> None:
        if "error" in answer:
            raise workspace_root.parse_error(answer)
        with self.seed_file.open("rb") as file:
            seed = read_seed(file)
        if seed.complete:
            # Its pack is in the repository now. What is lost from here on is the control plane's to send again, so
            # that people are told of it.
            write_seed(replace(seed, complete=False, refs={}, hooks={}), self.seed_file)


def _run_in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            privilege_drop.become_owner()
            with os.fdopen(writer, "wb") as answer:
                answer.write(orjson.dumps(work()))
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as answer:
            said = answer.read(_MAX_ANSWER)
    finally:
        os.waitpid(pid, 0)
    return _parse_child_answer(said)


def _parse_child_answer(said: bytes) -> dict[str, Any]:
    """What the child answered; it is the agent's user, so this is checked."""
    try:
        answer = orjson.loads(said.splitlines()[-1])
        if isinstance(answer, dict):
            return answer
    except (ValueError, IndexError):
        pass
    raise LaunchFailed("The workspace could not be prepared: its process ended without an answer.")


_HEAD_PREFIX: Final = "ref: refs/heads/"
_HEAD_LIMIT: Final = 4096


def describe_workspace(workspace: Path) -> dict[str, Any]:
    """Where it is, whether it is there, and its branch; cheap."""
    return {"path": str(workspace), "exists": workspace.is_dir(), "branch": _current_branch(workspace)}


def _current_branch(workspace: Path) -> str | None:
    """The checked-out branch, read without git; null if there is none."""
    try:
        head = _git_directory(workspace) / "HEAD"
        if not head.is_file():
            return None
        with head.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_HEAD_LIMIT).strip()
    except OSError:
        return None
    return text.removeprefix(_HEAD_PREFIX) if text.startswith(_HEAD_PREFIX) else None


def _git_directory(workspace: Path) -> Path:
    dot_git = workspace / ".git"
    if not dot_git.is_file():
        return dot_git
    with dot_git.open(encoding="utf-8", errors="replace") as file:
        return workspace / file.read(_HEAD_LIMIT).removeprefix("gitdir:").strip()


P = ParamSpec("P")
T = TypeVar("T")

_CODES: Final = {WorkspaceGone.code: Code.WORKTREE_MISSING, RepositoryUnusable.code: Code.GIT_FAILED}
_THREADS: Final = 4
"""A git that hangs holds up other looks at the workspace, and nothing else."""


class Workspace:
    """``root`` need not be there, nor be a repository."""

    def __init__(self, root: Path, marker: Mapping[str, str], preparation: WorkspacePreparation | None = None):
        self.root = root
        self.preparation = preparation
        self.git = WorkspaceGit(root, marker)
        self.shells = ShellManager(root, marker)
        self.dirty: bool | None = None
        """Whether something was not committed when git was asked last; None before."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="workspace")

    def report(self) -> dict[str, Any]:
        """``workspace`` of ``GET /status``; asks no git."""
        return {**describe_workspace(self.root), "dirty": self.dirty, "shells": self.shells.running}

    def rebuild_workspace(self) -> dict[str, Any]:
        """Make what was deleted of the workspace: ``{made}``, false where nothing was missing. Blocks; Refused."""
        preparation = self.preparation
        if preparation is None or (self.root / ".git").exists():
            return {"made": False}
        try:
            preparation.again()
        except ExecutorError as error:
            raise ApiError(
                _CODES.get(error.code, Code.INTERNAL_ERROR), error.message, permanent=error.permanent
            ) from error
        return {"made": True}

    def pack(self, known: Sequence[str]) -> tuple[dict[str, Any], IO[bytes]]:
        """Pack what the session has made: the answer of ``workspace_root.pack``, and its bundle. Blocks; Refused."""
        preparation = self.preparation
        if preparation is None:
            raise ApiError(Code.CONFLICT, "this workspace is not a repository of its own")
        # A file without a name, among ours: what the agent could put in its place would be sent as its work.
        bundle = tempfile.TemporaryFile(dir=preparation.seed_file.parent)  # noqa: SIM115  (the caller's to close)
        try:
            worktree = Worktree(preparation.workspace.with_name(preparation.owner_id), preparation.branch())
            packed = workspace_root.pack_work(preparation.repository, worktree, known, bundle)
        except ExecutorError as error:
            bundle.close()
            raise ApiError(_CODES.get(error.code, Code.INTERNAL_ERROR), error.message) from error
        bundle.seek(0)
        return packed, bundle

    async def call(self, look: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run something that blocks."""
        work = self._threads.submit(look, *args, **kwargs)
        return await asyncio.wrap_future(work)

    async def close(self) -> None:
        """End what still runs, and let go of the threads."""
        self.git.close()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
