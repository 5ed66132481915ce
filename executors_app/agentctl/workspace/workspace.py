"""One workspace as agentctl serves it: its directory, its git, and the threads in which both are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from executors_app.agentctl.workspace import describe
from executors_app.agentctl.workspace.git import Git
from executors_app.agentctl.workspace.shells import Shells

P = ParamSpec("P")
T = TypeVar("T")

_THREADS: Final = 4
"""A git that hangs holds up other looks at the workspace, and nothing else."""


class Workspace:
    """``root`` need not be there, nor be a repository."""

    def __init__(self, root: Path, marker: Mapping[str, str]):
        self.root = root
        self.git = Git(root, marker)
        self.shells = Shells(root, marker)
        self.dirty: bool | None = None
        """Whether something was not committed when git was asked last; None before."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="workspace")

    def report(self) -> dict[str, Any]:
        """``workspace`` of ``GET /status``; asks no git."""
        return {**describe(self.root), "dirty": self.dirty, "shells": self.shells.running}

    async def call(self, look: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run something that blocks."""
        work = self._threads.submit(look, *args, **kwargs)
        return await asyncio.wrap_future(work)

    async def close(self) -> None:
        """End what still runs, and let go of the threads."""
        self.git.close()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
