"""Sweeps beside bare HTTP requests and bare commits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from executors_app.models import ExecutorRunning
from executors_app.wire.executions import Observed
from sessions_app.kernel.rules.states import SessionState
from sessions_app.models import TaskSession
from sessions_app.recovery.sweep.sweep_pass import SweepRun, SweepScope, run_sweep
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from tests.bench.bare import BareGets, BareTable
from tests.bench.figures import Figure, in_turn
from tests.bench.world import World, fleet_of
from tests.support.fake_agentctl import FakeAgentctl, plan_fleet

TIMEOUT = 1.0
ADDED_LIMIT = 1.0
"""Executions that do not answer may add the timeout once, and no more."""


def of_the_living(world: World, count: int, rounds: int, limit: float | None) -> Figure:
    """Measure a dry sweep over a fleet that answers."""
    with fleet_of(count, "127.1.0.1") as fleet:
        world.fill(fleet)
        seconds, floor = asyncio.run(beside_gets(fleet, rounds, Counter({Observed.ALIVE: count})))
    return Figure(f"sweep of {count:,} live", seconds, f"{count:,} bare GETs", floor, limit=limit)


def of_the_troubled(world: World, count: int, rounds: int, *, limited: bool) -> list[Figure]:
    """Measure a fleet of which 10 % refuse and 1 % hang: the timeout passes once, not for each of them."""
    refusing, hanging = count // 10, max(1, count // 100)
    answering = count - refusing - hanging
    with fleet_of(count, "127.2.0.1", refusing=refusing, hanging=hanging) as fleet:
        world.fill(fleet)
        expected = Counter({Observed.ALIVE: answering, Observed.DEAD: refusing, Observed.UNKNOWN: hanging})
        seconds, gets = asyncio.run(beside_gets(fleet, rounds, expected, TIMEOUT))
    with fleet_of(count, "127.2.0.1") as fleet:
        world.fill(fleet)
        living, _ = asyncio.run(beside_gets(fleet, rounds, Counter({Observed.ALIVE: count}), TIMEOUT))
    row, limit = f"the same, {refusing} refuse, {hanging} hang", ADDED_LIMIT if limited else None
    return [
        Figure(row, seconds, f"{TIMEOUT:g} s + {answering:,} bare GETs", TIMEOUT + gets),
        Figure(row, seconds, f"{TIMEOUT:g} s + the sweep of {count:,} live", TIMEOUT + living, limit=limit),
    ]


async def beside_gets(
    fleet: Sequence[FakeAgentctl], rounds: int, expected: Counter[Observed], timeout: float = 0.0
) -> list[float]:
    """Return the best seconds of a sweep, and of the GETs to the members that answer."""
    registry = ExecutionRegistry()

    async def swept() -> None:
        result = await run_sweep(registry, SweepScope("command", timeout=timeout, dry_run=True), set())
        assert _observed(result) == expected

    try:
        gets = BareGets([one for one in fleet if one.behaviour == "answers"])
        return list(map(min, await in_turn(rounds, swept, gets)))
    finally:
        await registry.release_all()
        await registry.close()


def _observed(result: SweepRun) -> Counter[Observed]:
    return Counter(item.seen.observed for item in result.decided)


def of_the_dead(world: World, count: int, rounds: int) -> Figure:
    """Measure a sweep that acts: every agentctl is gone, and each loss is written under its lease."""
    world.fill(plan_fleet(count, "127.3.0.1", 9), policy="manual")
    seconds, floor = asyncio.run(_beside_commits(world, count, rounds))
    return Figure(f"sweep that writes {count} losses", seconds, f"{count} bare commits", floor)


async def _beside_commits(world: World, count: int, rounds: int) -> list[float]:
    registry, table = ExecutionRegistry(), BareTable(world.home / "losses.sqlite3")
    taken = []

    def forget() -> None:
        ExecutorRunning.objects.update(status=ExecutorRunning.Status.READY)
        TaskSession.objects.update(state=SessionState.RUNNING, launch_id="fake")

    async def acted() -> None:
        result = await run_sweep(registry, SweepScope("command"), set())
        assert [item.decision.rule for item in result.decided] == ["dead_resume_later"] * count
        assert not any(outcome.error or outcome.skipped for outcome in result.outcomes.values())

    def committed() -> None:
        for _ in range(count):
            table.insert(2)

    try:
        for _ in range(rounds):
            await registry.database(forget)
            taken.append(await in_turn(1, acted, committed))
    finally:
        await registry.release_all()
        await registry.close()
        table.close()
    return [min(each)[0] for each in zip(*taken, strict=True)]
