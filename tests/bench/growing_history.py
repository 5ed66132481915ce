"""CPU time for the same live sessions as the number of finished sessions grows."""

from __future__ import annotations

import asyncio
import atexit
import gc
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from typing import Final

from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from kandev.metrics import collect_metrics, render_metrics
from sessions_app.maintenance.chores import CHORES, run_chores
from sessions_app.models import TaskSession
from sessions_app.recovery.sweep.sweep_pass import SweepScope, run_sweep
from sessions_app.starts import admission
from sessions_app.supervisor import dispatcher, leases
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from tests.bench.figures import Figure, Point
from tests.bench.history import add_finished
from tests.bench.separate_process import SeparateProcess
from tests.bench.world import World, fleet_of

LIVE: Final = 10
LIMIT: Final = 1.5
WIDER_LIMITS: Final = {"metrics": 2.0}
"""Limits of curves that grow more; docs/performance.md explains why."""
ONE_ROW: Final = "reading one row"


def curves(sizes: Collection[int], rounds: int, *, limited: bool) -> Iterator[Figure | Point]:
    """Yield all points of all curves, and the ratio of the two ends of each.

    Each size has a process and a database of its own, and all of them take turns, so that a change of the machine's
    speed affects them alike.
    """
    taken: defaultdict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    with ExitStack() as stack:
        processes = {size: stack.enter_context(SeparateProcess("sqlite")) for size in sorted(sizes)}
        for size, process in processes.items():
            process.call(prepare, finished=size)
        for _, (size, process) in itertools.product(range(rounds), processes.items()):
            for name, seconds in process.call(measure).items():
                taken[name, size].append(seconds)
    best = {key: map(min, zip(*some, strict=True)) for key, some in taken.items()}
    points = [Point(f"history: {name}", size, amount, ONE_ROW, floor) for (name, size), (amount, floor) in best.items()]
    yield from points
    for name in dict.fromkeys(point.curve for point in points):
        first, *_, last = (point for point in points if point.curve == name)
        limit = WIDER_LIMITS.get(name.removeprefix("history: "), LIMIT) if limited else None
        beside = f"with {first.size:,} finished sessions"
        yield Figure(f"{name}, {last.size:,} finished", last.amount, beside, first.amount, limit=limit)


def prepare(world: World, finished: int) -> None:
    """Fill the database of this process."""
    fleet = _fleets.enter_context(fleet_of(LIVE, "127.10.0.1"))
    add_finished(world, fleet, finished)


def measure(world: World) -> dict[str, tuple[float, float]]:
    """Return the CPU seconds of one round of everything, each with its floor."""
    gc.freeze()  # so that collecting before each round is quick
    return {name: (cpu_of(run, 1), cpu_of(read_one, 1)) for name, run in _requests(world).items()}


_fleets: Final = ExitStack()
"""The fleet of this process, until it ends."""
atexit.register(_fleets.close)


def cpu_of(run: Callable[[], None], rounds: int) -> float:
    """Return the CPU seconds of the best round. This process does everything except the answers of agentctls."""
    run()  # import and compile what is needed
    gc.collect()  # what earlier parts have left
    taken = []
    for _ in range(rounds):
        began = time.process_time()
        run()
        taken.append(time.process_time() - began)
    return min(taken)


def sweep(live: int) -> None:
    """Run a dry sweep of ``live`` sessions."""

    async def run() -> None:
        registry = ExecutionRegistry()
        try:
            result = await run_sweep(registry, SweepScope("command", dry_run=True), set())
        finally:
            await registry.close()
        assert len(result.decided) == live

    asyncio.run(run())


def read_one() -> None:
    """Read one session."""
    assert TaskSession.objects.order_by("id").first()


def _requests(world: World) -> Mapping[str, Callable[[], None]]:
    client = Client(SERVER_NAME="127.0.0.1")
    client.force_login(world.user)
    session = TaskSession.objects.filter(executions__status="ready").first()
    assert session is not None
    board, page = reverse("board"), reverse("session", args=[session.task_id, session.id])
    chores = [name for name in CHORES if name != "orphans"]  # which contacts container engines

    def show(path: str) -> None:
        answer = client.get(path)
        assert answer.status_code == 200, answer.status_code

    return {
        "sweep": lambda: sweep(LIVE),
        "board": lambda: show(board),
        "search": lambda: show(f"{board}?q=nothing+has+this+name"),
        "session page": lambda: show(page),
        "start": _ask_what_to_start,
        "maintenance": lambda: _drop(run_chores(chores)),
        "metrics": lambda: _drop(render_metrics(collect_metrics())),
        "migrate": lambda: _drop(call_command("migrate", verbosity=0, skip_checks=True)),
    }


def _drop(result: object) -> None:
    """Ignore a result."""


def _ask_what_to_start() -> None:
    """Run the queries of a supervisor before it starts a session."""
    admission.load_due_restarts(timezone.now())
    admission.start_allowance("bench", admission.StartSlots())
    dispatcher.load_pending_sessions("bench")
    leases.load_orphaned_sessions("bench")
