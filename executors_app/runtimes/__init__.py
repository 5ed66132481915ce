"""The contract of a runtime: each folder of this package is one kind of place where agents run.

Its module ``runtime`` defines ``RUNTIME``, an object of this shape, which ``executors_app.plugins`` finds; a runtime of
one module needs no folder. Every method can be called
again after a crash at any point, because names and paths follow from the ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar, runtime_checkable

from executors_app.wire.executions import (
    ExecutionFacts,
    ExitEvent,
    Launched,
    LaunchSpec,
    LaunchWait,
    LeftState,
    Observation,
    Orphan,
    WorkspaceState,
)

T = TypeVar("T")


class Runtime(Protocol):
    """One kind of place where agents run."""

    name: str
    isolated: bool
    """Whether agents are kept apart from the control plane; otherwise *trusted agents only*."""

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Raise ValueError, with one clear sentence, for an invalid ``Executor.config``."""
        ...

    async def check_availability(self, config: Mapping[str, Any]) -> None:
        """Raise RuntimeUnavailable, with one clear sentence, if nothing can be launched now. Writes nothing."""
        ...

    async def launch(self, spec: LaunchSpec) -> Launched:
        """Make the workspace and start agentctl, or find what an interrupted launch has left.

        Raises WorkspaceGone, RepositoryUnusable, LaunchFailed, RuntimeUnavailable.
        """
        ...

    def can_manage(self, execution: ExecutionFacts) -> bool:
        """Whether this process can manage the execution: False if it runs on another machine that is out of reach."""
        ...

    async def observe(
        self, executions: Sequence[ExecutionFacts], *, timeout: float, concurrency: int
    ) -> dict[str, Observation]:
        """Observe many executions concurrently and return observations by id; writes nothing."""
        ...

    async def end(self, execution: ExecutionFacts) -> bool:
        """End an agentctl that does not answer, after proof of ownership; True when nothing is left running."""
        ...

    async def end_leftovers(self, execution: ExecutionFacts) -> int:
        """End marked processes that outlived their agentctl, after proof of ownership; returns how many."""
        ...

    def resume_token(self, execution: ExecutionFacts) -> str | None:
        """Return the agent's conversation id that a dead agentctl left on disk, if the runtime can read it."""
        ...

    def unread_journal(self, execution: ExecutionFacts, after: int, epoch: str) -> Sequence[Mapping[str, Any]]:
        """Return a dead agentctl's journal lines after ``after`` of ``epoch``; empty if out of reach."""
        ...


@runtime_checkable
class SupportsOrphans(Protocol):
    """Optional: a runtime that can list and remove what it started but no row needs."""

    async def orphans(self, known: Collection[str], configs: Collection[Mapping[str, Any]]) -> list[Orphan]:
        """List what has this deployment's labels, but belongs to nothing in ``known``: ids of executions and sessions.

        ``configs`` are the settings of this runtime's executors. Raises RuntimeUnavailable.
        """
        ...

    async def remove_orphan(self, orphan: Orphan, configs: Collection[Mapping[str, Any]]) -> bool:
        """End and remove an orphan if it is still what was listed; False if the proof fails."""
        ...


@runtime_checkable
class SupportsPush(Protocol):
    """Optional: a runtime whose workspaces have repositories of their own."""

    async def push_work(self, execution: ExecutionFacts) -> bool:
        """Transfer the session's branch and snapshots to the control plane; False if nothing was new.

        Raises RuntimeUnavailable, AgentctlUnreachable, LaunchFailed, RepositoryUnusable, WorkspaceGone.
        """
        ...


@runtime_checkable
class SupportsExitEvents(Protocol):
    """Optional: a runtime that is notified when a container or host of executions has ended."""

    def exit_event_source(self, execution: ExecutionFacts) -> Hashable:
        """Return the source that reports this execution's end; raises RuntimeUnavailable."""
        ...

    def exit_events(self, source: Hashable) -> AsyncIterator[ExitEvent]:
        """Yield the source's exit events without end.

        ``ExitEvent.silent`` means that the source does not answer, so open streams from it cannot be trusted. Raises
        nothing: a silent source is tried again at intervals.
        """
        ...


@runtime_checkable
class SupportsLostPlaces(Protocol):
    """Optional: a runtime of whose places a person can say that they are gone for good (``wire.executions.PLACE``)."""

    async def place_answers(self, config: Mapping[str, Any], place: str) -> bool:
        """Whether the place answers that executions have recorded; raises RuntimeUnavailable if none does."""
        ...


ReportWait = Callable[[LaunchWait], None]
"""Is told what a launch waits for, as often as it is seen; it returns at once."""


@runtime_checkable
class SupportsLaunchReports(Protocol):
    """Optional: a runtime whose launches may wait for others, and say for what."""

    async def launch_reporting(self, spec: LaunchSpec, report: ReportWait) -> Launched:
        """Do what ``launch`` does, and raise what it raises; tell ``report`` what it waits for."""
        ...


@runtime_checkable
class SupportsSettling(Protocol):
    """Optional: a runtime whose places keep what has ended until its end was recorded."""

    async def settle_ended(self, configs: Collection[Mapping[str, Any]]) -> None:
        """Record the ends of what somebody else has ended, and let it go; a place that does not answer is left out.

        ``configs`` are the settings of this runtime's executors.
        """
        ...


FindUnwanted = Callable[[Collection[str]], Awaitable[Mapping[str, bool]]]
"""Returns which of these sessions nobody starts any more; the value is whether even their workspaces are not needed."""


@runtime_checkable
class SupportsUnwantedLaunches(Protocol):
    """Optional: a runtime in whose places something may wait to start for longer than a launch takes."""

    async def remove_unwanted(self, configs: Collection[Mapping[str, Any]], find_unwanted: FindUnwanted) -> None:
        """Remove what has never run, of sessions that nobody starts any more; a silent place is left out.

        ``configs`` are the settings of this runtime's executors.
        """
        ...


@runtime_checkable
class SupportsLeftState(Protocol):
    """Optional: a runtime that reads all that a dead agentctl left at once, because each reading takes seconds."""

    def left_state(self, execution: ExecutionFacts, after: int, epoch: str) -> LeftState:
        """Return what ``resume_token`` and ``unread_journal`` do; raises what they raise."""
        ...


def read_left_state(place: Runtime, execution: ExecutionFacts, after: int, epoch: str) -> LeftState:
    """Return what a dead agentctl left: its resume token, and its journal after ``after`` of ``epoch``; blocks."""
    if isinstance(place, SupportsLeftState):
        return place.left_state(execution, after, epoch)
    return LeftState(place.resume_token(execution), place.unread_journal(execution, after, epoch))


@runtime_checkable
class SupportsSharedWorktrees(Protocol):
    """Optional: a session can work in another session's worktree (``LaunchSpec.worktree_id``)."""

    shares_worktrees: bool


@runtime_checkable
class SupportsWorkspaceState(Protocol):
    """Optional: this machine's disk shows whether a worktree is present or can be rebuilt."""

    def workspace_state(self, execution: ExecutionFacts) -> tuple[WorkspaceState, str]:
        """Return the worktree's state, and the precise reason if it is gone; quick, changes nothing, raises OSError."""
        ...


@runtime_checkable
class SharesMachineMemory(Protocol):
    """Optional: agents use this machine's memory, which limits how many may run."""

    shares_memory: bool


@runtime_checkable
class BoundToHost(Protocol):
    """Optional: only processes of the host that an execution runs on can reach it (``ExecutorRunning.host_id``)."""

    bound_to_host: bool


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on its own thread, because the caller may have an event loop; blocks."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
