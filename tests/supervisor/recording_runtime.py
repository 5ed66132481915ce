"""A runtime that returns configured observations, and sweeps that use it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from executors_app.wire.errors import LaunchFailed
from executors_app.wire.executions import ExecutionFacts, Launched, LaunchSpec, Observation, Observed
from sessions_app.models import TaskSession
from sessions_app.recovery.sweep.sweep_pass import SweepRun, SweepScope, run_sweep
from sessions_app.stream.stream_news import News
from sessions_app.supervisor.execution_registry import ExecutionRegistry, IgnoreNews
from sessions_app.supervisor.execution_stream import ExecutionStream, SessionListener
from tests.supervisor.journals import Line
from tests.supervisor.rows import NO_LEASE, running_session

T = TypeVar("T")
DEAD = Observation(Observed.DEAD, reason="process_gone")
UNKNOWN = Observation(Observed.UNKNOWN, reason="timeout")


class RecordingRuntime:
    """A runtime that observes what ``sees`` has for a session, otherwise *dead*; raises while ``blind``."""

    name = "recording"
    isolated = False

    def __init__(self) -> None:
        self.sees: dict[str, Observation] = {}
        self.left: dict[str, list[Line]] = {}
        self.tokens: dict[str, str] = {}
        self.looks: list[tuple[int, float, int]] = []
        self.observed_sessions: list[str] = []
        """Sessions in the order in which they were observed."""
        self.ended: list[str] = []
        self.broken: set[str] = set()
        self.blind = False
        self.elsewhere: set[str] = set()

    def check_config(self, config: Mapping[str, Any]) -> None:
        pass

    async def check_availability(self, config: Mapping[str, Any]) -> None:
        pass

    async def launch(self, spec: LaunchSpec) -> Launched:
        """Raise LaunchFailed."""
        raise LaunchFailed

    def can_manage(self, execution: ExecutionFacts) -> bool:
        """Return False for executions that are set to be elsewhere."""
        return execution.session_id not in self.elsewhere

    async def observe(
        self, executions: Sequence[ExecutionFacts], *, timeout: float, concurrency: int
    ) -> dict[str, Observation]:
        """Return the configured observations."""
        self.looks.append((len(executions), timeout, concurrency))
        self.observed_sessions += [one.session_id for one in executions]
        if self.blind:
            raise OSError("nothing can be seen from here")
        return {one.id: self.sees.get(one.session_id, DEAD) for one in executions}

    async def end(self, execution: ExecutionFacts) -> bool:
        """Return True without ending anything."""
        return True

    async def end_leftovers(self, execution: ExecutionFacts) -> int:
        """Record whose leftovers were ended."""
        self.ended.append(execution.session_id)
        return 1

    def resume_token(self, execution: ExecutionFacts) -> str | None:
        """Return the token on this disk."""
        return self.tokens.get(execution.session_id)

    def unread_journal(self, execution: ExecutionFacts, after: int, epoch: str) -> Sequence[Line]:
        """Return the journal on this disk after the cursor; raise for a broken session."""
        if execution.session_id in self.broken:
            raise RuntimeError("this disk is on fire")
        return [line for line in self.left.get(execution.session_id, ()) if line["seq"] > after]

    def set_observation(self, session: TaskSession, seen: Observation) -> None:
        """Set the observation of ``session`` for the following sweeps."""
        self.sees[str(session.id)] = seen


def lost_session(runtime: RecordingRuntime, **fields: Any) -> TaskSession:
    """Return a session that should run although its supervisor and its agentctl are gone."""
    return running_session(runtime=runtime.name, execution=NO_LEASE, **fields)


class RecordingListener(IgnoreNews):
    """Records what a registry reports, in place of a supervisor's loop."""

    def __init__(self) -> None:
        self.woken: list[uuid.UUID] = []
        self.lost: list[uuid.UUID] = []
        self.news: list[News] = []

    def handle_news(self, stream: ExecutionStream, news: Sequence[News]) -> None:
        """Record what a commit brought."""
        self.news += news

    def handle_lost_stream(self, stream: ExecutionStream) -> None:
        """Record the session whose stream was lost."""
        self.lost.append(stream.session_id)

    def wake_session(self, session_id: uuid.UUID) -> None:
        """Record the session whose work may be due."""
        self.woken.append(session_id)


def with_registry(work: Callable[[ExecutionRegistry], Awaitable[T]], listener: SessionListener | None = None) -> T:
    """Run ``work`` with a supervisor's registry, which is closed afterwards."""

    async def run() -> T:
        registry = ExecutionRegistry(listener)
        try:
            return await work(registry)
        finally:
            await registry.release_all()
            await registry.close()

    return asyncio.run(run())


def sweep_once(scope: SweepScope | None = None, unknown: set[str] | None = None) -> SweepRun:
    """Run one sweep of a new supervisor; its scope is *boot* by default."""
    known = set() if unknown is None else unknown
    return with_registry(lambda registry: run_sweep(registry, scope or SweepScope("boot"), known))
