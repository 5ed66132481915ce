"""All benchmarks, one after the other, with a progress bar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.bench import (
    catching_up,
    deaths,
    fanout,
    floors,
    ingests,
    journals,
    latencies,
    resumes,
    screens,
    storms,
    sweeps,
    terminals,
)
from tests.bench.figures import Figure, Floor
from tests.bench.world import World


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    fleet: int
    losses: int
    rounds: int
    work: float
    """Seconds that the agent works."""
    samples: int
    """Of what waits for the disk."""
    messages: int
    """Of a long session."""
    megabytes: int
    """That a shell says at once."""
    sockets: int
    """Watching one session."""
    updates: int
    """That nobody hears until they are caught up."""
    resumes: int
    """Of an agent that was killed."""
    storm: int
    """Stand-ins that should run and do not."""
    storm_agents: int
    """Real agents beside them."""
    limit: float | None
    """How many times its floor a sweep may take; None where the counts are too small to judge."""


FULL = Sizes(
    fleet=1000,
    losses=100,
    rounds=15,
    work=5,
    samples=200,
    messages=5000,
    megabytes=16,
    sockets=1000,
    updates=50_000,
    resumes=20,
    storm=1000,
    storm_agents=30,
    limit=4.0,
)
QUICK = Sizes(
    fleet=20,
    losses=3,
    rounds=1,
    work=0.5,
    samples=5,
    messages=50,
    megabytes=1,
    sockets=20,
    updates=500,
    resumes=1,
    storm=25,
    storm_agents=1,
    limit=None,
)


def everything(sizes: Sizes) -> tuple[list[Figure], list[Floor]]:
    """Every row, and the floors of this machine."""
    world, rounds = World(), sizes.rounds
    gets = 0.0

    def living() -> list[Figure]:
        nonlocal gets
        figure = sweeps.of_the_living(world, sizes.fleet, rounds, sizes.limit)
        gets = figure.floor_seconds / sizes.fleet
        return [figure]

    parts: dict[str, Callable[[], list[Figure]]] = {
        "sweep": living,
        "sweep with troubles": lambda: [sweeps.of_the_troubled(world, sizes.fleet, rounds, sizes.limit)],
        "sweep that writes": lambda: [sweeps.of_the_dead(world, sizes.losses, rounds)],
        "journal": lambda: [journals.appends(world.home, size, sizes.samples) for size in (1, 64, 1000)],
        "ingest": lambda: [ingests.batches(world, 1, 64, rounds), ingests.batches(world, 20, 50, rounds)],
        "catching up": lambda: [catching_up.of_updates(world, sizes.updates)],
        "the same, PostgreSQL": lambda: catching_up.on_postgresql(sizes.updates),
        "latency": lambda: latencies.of_a_turn(world, sizes.work),
        "resume": lambda: resumes.of_a_killed_agent(world, sizes.resumes, limited=sizes.limit is not None),
        "death": lambda: deaths.to_ready(world, sizes.resumes),
        "storm": lambda: storms.of_many(world, sizes.storm, sizes.storm_agents, limited=sizes.limit is not None),
        "screen": lambda: screens.of_a_fast_agent(world, sizes.work),
        "terminal": lambda: terminals.of_a_long_text(world, sizes.megabytes, sizes.rounds),
        "long page": lambda: [screens.of_a_long_session(world, sizes.messages, sizes.rounds)],
        "fan-out": lambda: [fanout.to_all(world, sizes.sockets, sizes.rounds)],
    }
    figures: list[Figure] = []
    columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(parts) + 1)
        for name, measure in parts.items():
            bar.update(task, description=name)
            figures += measure()
            bar.advance(task)
        bar.update(task, description="floors")
        return figures, floors.measured(world.home, gets, sizes.samples)
