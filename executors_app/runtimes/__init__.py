"""The contract of a runtime: one file of this package is one kind of place where agents run.

A module defines ``RUNTIME``, an object with this shape; ``executors_app.plugins`` finds it.
Every verb may be called again after a crash anywhere: places follow from the ids (rule 4).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar, runtime_checkable

from executors_app.domain import ExecutionFacts, ExitEvent, Launched, LaunchSpec, Observation, Orphan, WorkspaceState

T = TypeVar("T")


class Runtime(Protocol):
    """One kind of place where agents run."""

    name: str
    isolated: bool
    """False: agents share the machine with the control plane (*trusted agents only*)."""

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Refuse a bad ``Executor.config`` with ValueError, one clear sentence."""
        ...

    async def check_availability(self, config: Mapping[str, Any]) -> None:
        """Raise RuntimeUnavailable, in one clear sentence, where nothing could be launched now. Writes nothing."""
        ...

    async def launch(self, spec: LaunchSpec) -> Launched:
        """Make the workspace and start agentctl, or find what a half-done launch has left.

        Raises WorkspaceGone, RepositoryUnusable, LaunchFailed, RuntimeUnavailable.
        """
        ...

    def can_manage(self, execution: ExecutionFacts) -> bool:
        """Whether this process can look after it: not one that another machine keeps (rule 2)."""
        ...

    async def observe(
        self, executions: Sequence[ExecutionFacts], *, timeout: float, concurrency: int
    ) -> dict[str, Observation]:
        """Look at many executions at once, bounded; by id. Writes nothing, and one bad row spoils no other."""
        ...

    async def end(self, execution: ExecutionFacts) -> bool:
        """End a silent agentctl by process or container, on ownership proof; True when nothing is left."""
        ...

    async def end_leftovers(self, execution: ExecutionFacts) -> int:
        """End marked processes that outlived their agentctl, on proof (rule 25); returns how many."""
        ...

    def resume_token(self, execution: ExecutionFacts) -> str | None:
        """The agent's conversation id that a dead agentctl has left on disk, if the runtime can read it."""
        ...

    def unread_journal(self, execution: ExecutionFacts, after: int, epoch: str) -> Sequence[Mapping[str, Any]]:
        """What a dead agentctl's journal holds behind ``after`` of ``epoch``; empty if out of reach."""
        ...


@runtime_checkable
class SupportsOrphans(Protocol):
    """What a runtime can do beside, where what it starts is marked as this deployment's for good."""

    async def orphans(self, known: Collection[str], configs: Collection[Mapping[str, Any]]) -> list[Orphan]:
        """What is ours by its marks and whose execution id is not among ``known``; RuntimeUnavailable.

        ``configs`` are those of the executors of this runtime.
        """
        ...

    async def remove_orphan(self, orphan: Orphan, configs: Collection[Mapping[str, Any]]) -> bool:
        """End and remove one, if it still is what it was listed as; False where the proof fails."""
        ...


@runtime_checkable
class SupportsPush(Protocol):
    """What a runtime can do beside, where a workspace has a repository of its own."""

    async def push_work(self, execution: ExecutionFacts) -> bool:
        """Let the session's branch and snapshots arrive at the control plane; False where nothing was new.

        Raises RuntimeUnavailable, AgentctlUnreachable, LaunchFailed, RepositoryUnusable, WorkspaceGone.
        """
        ...


@runtime_checkable
class SupportsExitEvents(Protocol):
    """What a runtime can do beside, where somebody over there tells of what ended."""

    def exit_event_source(self, execution: ExecutionFacts) -> Hashable:
        """Who would tell of this execution's end; RuntimeUnavailable."""
        ...

    def exit_events(self, source: Hashable) -> AsyncIterator[ExitEvent]:
        """For ever; one that names no session: something may have been missed, all of this source should be looked at.

        ``Death.silent``: nobody answers there, and the streams from there are not to be believed. Raises
        nothing: a source that is silent costs a try now and again.
        """
        ...


@runtime_checkable
class SupportsSharedWorktrees(Protocol):
    """What a runtime is beside, where a session can work in another session's worktree (``LaunchSpec.worktree_id``)."""

    shares_worktrees: bool


@runtime_checkable
class SupportsWorkspaceState(Protocol):
    """What a runtime can do beside, where a look at this machine's disk shows whether a worktree can still be had."""

    def workspace_state(self, execution: ExecutionFacts) -> tuple[WorkspaceState, str]:
        """Whether it can be had, and the precise reason if it cannot; quick, changes nothing, raises OSError."""
        ...


@runtime_checkable
class SharesMachineMemory(Protocol):
    """What a runtime is beside, whose agents live on this machine's memory: it bounds how many there may be."""

    shares_memory: bool


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a thread of its own, because the caller may have an event loop; blocks."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
