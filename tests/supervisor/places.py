"""A runtime that observes what a test tells it to, and what a sweep decides from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from executors_app.domain import ExecutionFacts, Launched, LaunchSpec, Observation, Observed
from executors_app.errors import LaunchFailed
from sessions_app.models import TaskSession
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.sweep.sweep_pass import SweepRun, SweepScope, run_sweep
from tests.supervisor.journals import Line

T = TypeVar("T")
DEAD = Observation(Observed.DEAD, reason="process_gone")
UNKNOWN = Observation(Observed.UNKNOWN, reason="timeout")


class AsTold:
    """Sees what ``sees`` says of a session, else nobody alive; where it is ``blind`` it raises."""

    name = "as_told"
    isolated = False

    def __init__(self) -> None:
        self.sees: dict[str, Observation] = {}
        self.left: dict[str, list[Line]] = {}
        self.tokens: dict[str, str] = {}
        self.looks: list[tuple[int, float, int]] = []
        self.asked: list[str] = []
        """Sessions, in the order in which it was asked about them."""
        self.ended: list[str] = []
        self.broken: set[str] = set()
        self.blind = False
        self.elsewhere: set[str] = set()

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Any will do."""

    async def check_availability(self, config: Mapping[str, Any]) -> None:
        """It can always be asked."""

    async def launch(self, spec: LaunchSpec) -> Launched:
        """Nothing runs here."""
        raise LaunchFailed

    def can_manage(self, execution: ExecutionFacts) -> bool:
        """What is elsewhere was told to be so."""
        return execution.session_id not in self.elsewhere

    async def observe(
        self, executions: Sequence[ExecutionFacts], *, timeout: float, concurrency: int
    ) -> dict[str, Observation]:
        """As told."""
        self.looks.append((len(executions), timeout, concurrency))
        self.asked += [one.session_id for one in executions]
        if self.blind:
            raise OSError("nothing can be seen from here")
        return {one.id: self.sees.get(one.session_id, DEAD) for one in executions}

    async def end(self, execution: ExecutionFacts) -> bool:
        """Nothing runs here."""
        return True

    async def end_leftovers(self, execution: ExecutionFacts) -> int:
        """Remembers whose were ended."""
        self.ended.append(execution.session_id)
        return 1

    def resume_token(self, execution: ExecutionFacts) -> str | None:
        """What lies on this disk."""
        return self.tokens.get(execution.session_id)

    def unread_journal(self, execution: ExecutionFacts, after: int, epoch: str) -> Sequence[Line]:
        """What lies on this disk behind the cursor; a broken one cannot even be asked."""
        if execution.session_id in self.broken:
            raise RuntimeError("this disk is on fire")
        return [line for line in self.left.get(execution.session_id, ()) if line["seq"] > after]

    def see(self, session: TaskSession, seen: Observation) -> None:
        """From now on ``session`` looks like this."""
        self.sees[str(session.id)] = seen


def with_registry(work: Callable[[ExecutionRegistry], Awaitable[T]]) -> T:
    """What ``work`` does with a supervisor's registry, which then gives everything back."""

    async def run() -> T:
        registry = ExecutionRegistry()
        try:
            return await work(registry)
        finally:
            await registry.close()

    return asyncio.run(run())


def swept(scope: SweepScope | None = None, unknown: set[str] | None = None) -> SweepRun:
    """One sweep by a supervisor of its own; at boot unless said otherwise."""
    known = set() if unknown is None else unknown
    return with_registry(lambda registry: run_sweep(registry, scope or SweepScope("boot"), known))
