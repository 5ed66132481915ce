"""The workspace of one execution: create it with the agent's rights, report it, and run its blocking calls.

It is created before agentctl serves, and again after it was deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Final, ParamSpec, TypeVar

from executors_app.agentctl.workspace import branch_review
from executors_app.agentctl.workspace.agent_preparation import Notice, prepare_workspace
from executors_app.agentctl.workspace.file_search import FileSearch
from executors_app.agentctl.workspace.preparation import WorkspacePreparation
from executors_app.agentctl.workspace.review_parts import Part, PartOfBranch
from executors_app.agentctl.workspace.shells import ShellManager
from executors_app.machine.git import git_directory, workspace_root
from executors_app.machine.git.seeds import Seed, read_seed
from executors_app.machine.git.workspace_git import WorkspaceGit
from executors_app.machine.git.worktrees import Worktree
from executors_app.wire.errors import ExecutorError, RepositoryUnusable, WorkspaceGone
from executors_app.wire.exhaustion import raise_if_exhausted
from executors_app.wire.protocol import ApiError, Code

P = ParamSpec("P")
T = TypeVar("T")

_CODES: Final = {WorkspaceGone.code: Code.WORKTREE_MISSING, RepositoryUnusable.code: Code.GIT_FAILED}
_THREADS: Final = 4
"""A hanging git can delay only other calls on the workspace."""


def _head_report(workspace: Path) -> dict[str, Any]:
    """Return ``{branch, operation}``: the checked-out branch and what git is in the middle of; runs no git."""
    folder = git_directory.git_directory_of(workspace)
    if folder is None:
        return {"branch": None, "operation": None}
    return {
        "branch": git_directory.read_head(folder).branch or None,
        "operation": git_directory.operation_in_progress(folder) or None,
    }


class Workspace:
    """One workspace; ``root`` may be missing, or not be a repository."""

    def __init__(self, root: Path, marker: Mapping[str, str], preparation: WorkspacePreparation | None = None):
        self.root = root
        self.preparation = preparation
        self.git = WorkspaceGit(root, marker)
        self.file_search = FileSearch(self.git)
        self.shells = ShellManager(root, marker)
        self.dirty: bool | None = None
        """Whether there were uncommitted changes at the last check; None before the first."""
        self.rebuild_note = ""
        """What the workspace lacks that was rebuilt for the agent that starts now; empty if it was not lost."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="workspace")

    def report(self) -> dict[str, Any]:
        """Return ``workspace`` of ``GET /status``; runs no git."""
        return {
            "path": str(self.root),
            "exists": self.root.is_dir(),
            **_head_report(self.root),
            "dirty": self.dirty,
            "shells": self.shells.running_count,
        }

    def prepare_for_agent(self) -> list[Notice]:
        """Repair what would break the agent's git, and return what should be known. Blocks; never raises."""
        notes: list[str] = []
        if self.preparation:
            notes = self.preparation.notes
        rebuilt = [Notice("workspace_rebuilt", f"The worktree was rebuilt. {note}") for note in notes]
        self.rebuild_note = " ".join(notes)
        notes.clear()
        if not self.git.has_repository:
            return rebuilt
        return [*rebuilt, *prepare_workspace(self.git, self._new_base(), rebuilt=bool(rebuilt))]

    def _new_base(self) -> str:
        """Return the branch that a new session starts from; empty if it started earlier."""
        seed = self._seed()
        if seed is None or seed.existed:
            return ""
        return _base_of_seed(seed)

    def _seed(self) -> Seed | None:
        if self.preparation is None:
            return None
        try:
            with self.preparation.seed_file.open("rb") as file:
                return read_seed(file)
        except (OSError, ValueError) as error:
            raise_if_exhausted(error)
            return None

    def list_branch_changes(self, base: str) -> dict[str, Any]:
        """Return what the branch has changed since ``base``, by default where the session started. Blocks."""
        return branch_review.list_branch_changes(self.git, self._base(base))

    def branch_hunks(self, base: str, paths: Sequence[str], context: int) -> dict[str, Any]:
        """Return the hunks of files that the branch has changed. Blocks; raises ApiError."""
        return branch_review.branch_hunks(self.git, self._base(base), paths, context)

    def list_part_changes(self, part: Part, owner_id: str, base: str) -> dict[str, Any]:
        """Return what a part of the branch has changed; ``owner_id`` is the session of its snapshots. Blocks."""
        return PartOfBranch(self.git, owner_id, part).list_changes(self._base(base))

    def part_hunks(self, part: Part, owner_id: str, paths: Sequence[str], context: int) -> dict[str, Any]:
        """Return the hunks of files that a part of the branch has changed. Blocks; raises ApiError."""
        return PartOfBranch(self.git, owner_id, part).read_hunks(paths, context)

    def _base(self, requested: str) -> str:
        seed = self._seed()
        return branch_review.base_of(self.git, requested, _base_of_seed(seed) if seed else "")

    def head(self) -> dict[str, str | None]:
        """Return ``{branch, head}``: what is checked out, null for none. Blocks."""
        commit = ""
        with contextlib.suppress(ApiError):
            commit = self.git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}", good=(0, 1, 128)).text
        return {"branch": _head_report(self.root)["branch"], "head": commit or None}

    def rebuild_workspace(self) -> dict[str, Any]:
        """Rebuild what was deleted; return ``{made}``, False if nothing was missing. Blocks; raises ApiError."""
        preparation = self.preparation
        if preparation is None or (self.root / ".git").exists():
            return {"made": False}
        try:
            preparation.recreate()
        except ExecutorError as error:
            raise ApiError(
                _CODES.get(error.code, Code.INTERNAL_ERROR), error.message, permanent=error.permanent
            ) from error
        return {"made": True}

    def pack_work(self, known: Sequence[str]) -> tuple[dict[str, Any], IO[bytes]]:
        """Pack the session's work: the result of ``workspace_root.pack_work`` and a bundle. Blocks; raises ApiError."""
        preparation = self.preparation
        if preparation is None:
            raise ApiError(Code.CONFLICT, "this workspace has no repository of its own")
        # An unnamed file in our own directory: the agent cannot replace it by something that is sent as its work.
        bundle = tempfile.TemporaryFile(dir=preparation.seed_file.parent)  # noqa: SIM115  (the caller's to close)
        try:
            worktree = Worktree(preparation.workspace.with_name(preparation.owner_id), preparation.branch())
            packed = workspace_root.pack_work(preparation.repository, worktree, known, bundle)
        except ExecutorError as error:
            bundle.close()
            raise ApiError(_CODES.get(error.code, Code.INTERNAL_ERROR), error.message) from error
        bundle.seek(0)
        return packed, bundle

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking function in a thread of this workspace."""
        work = self._threads.submit(function, *args, **kwargs)
        return await asyncio.wrap_future(work)

    async def close(self) -> None:
        """Kill running gits and stop the threads."""
        self.git.close()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)


def _base_of_seed(seed: Seed) -> str:
    if seed.base or not seed.repository:
        return seed.base
    return _checked_out_branch(Path(seed.repository))


def _checked_out_branch(repository: Path) -> str:
    """Return the branch at which a session without a base starts; empty if HEAD is detached or cannot be read."""
    return git_directory.read_head(git_directory.git_directory_of(repository) or repository).branch
