"""One workspace as agentctl serves it: its directory, its git, and the threads in which both are asked."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Final, ParamSpec, TypeVar

from executors_app.agentctl.places import workspace_root
from executors_app.agentctl.places.worktrees import Worktree
from executors_app.agentctl.preparation import Preparation
from executors_app.agentctl.protocol import Code
from executors_app.agentctl.refusals import Refused
from executors_app.agentctl.workspace import describe
from executors_app.agentctl.workspace.git import Git
from executors_app.agentctl.workspace.shells import Shells
from executors_app.errors import ExecutorError, RepositoryUnusable, WorkspaceGone

P = ParamSpec("P")
T = TypeVar("T")

_CODES: Final = {WorkspaceGone.code: Code.WORKTREE_MISSING, RepositoryUnusable.code: Code.GIT_FAILED}
_THREADS: Final = 4
"""A git that hangs holds up other looks at the workspace, and nothing else."""


class Workspace:
    """``root`` need not be there, nor be a repository."""

    def __init__(self, root: Path, marker: Mapping[str, str], preparation: Preparation | None = None):
        self.root = root
        self.preparation = preparation
        self.git = Git(root, marker)
        self.shells = Shells(root, marker)
        self.dirty: bool | None = None
        """Whether something was not committed when git was asked last; None before."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="workspace")

    def report(self) -> dict[str, Any]:
        """``workspace`` of ``GET /status``; asks no git."""
        return {**describe(self.root), "dirty": self.dirty, "shells": self.shells.running}

    def make_again(self) -> dict[str, Any]:
        """Make what was deleted of the workspace: ``{made}``, false where nothing was missing. Blocks; Refused."""
        preparation = self.preparation
        if preparation is None or (self.root / ".git").exists():
            return {"made": False}
        try:
            preparation.again()
        except ExecutorError as error:
            raise Refused(
                _CODES.get(error.code, Code.INTERNAL_ERROR), error.message, permanent=error.permanent
            ) from error
        return {"made": True}

    def pack(self, known: Sequence[str]) -> tuple[dict[str, Any], IO[bytes]]:
        """Pack what the session has made: the answer of ``workspace_root.pack``, and its bundle. Blocks; Refused."""
        preparation = self.preparation
        if preparation is None:
            raise Refused(Code.CONFLICT, "this workspace is not a repository of its own")
        # A file without a name, among ours: what the agent could put in its place would be sent as its work.
        bundle = tempfile.TemporaryFile(dir=preparation.seed_file.parent)  # noqa: SIM115  (the caller's to close)
        try:
            worktree = Worktree(preparation.workspace.with_name(preparation.owner_id), preparation.branch())
            packed = workspace_root.pack(preparation.repository, worktree, known, bundle)
        except ExecutorError as error:
            bundle.close()
            raise Refused(_CODES.get(error.code, Code.INTERNAL_ERROR), error.message) from error
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
