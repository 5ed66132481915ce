"""CPU time of each live session as their number grows."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Final

from sessions_app.kernel.locking import LockTimer
from sessions_app.kernel.rules.states import SessionState
from sessions_app.stream.ingest.batches import Batch, write_batches
from tests.bench import ingests
from tests.bench.figures import Figure, Point
from tests.bench.growing_history import ONE_ROW, cpu_of, read_one, sweep
from tests.bench.world import World, fleet_of

LIMIT: Final = 1.5
LINES: Final = 10
"""Lines of each session in one batch."""
AT_ONCE: Final = 200
"""Batches in one transaction, which has at most 2,000 lines."""


def curves(world: World, sizes: Collection[int], rounds: int, *, limited: bool) -> Iterator[Figure | Point]:
    """Yield all points of all curves, and for each curve the ratio of the cost per session at its two ends."""
    points: list[Point] = []
    for size in sorted(sizes):
        with fleet_of(size, "127.12.0.1") as fleet:
            world.fill(fleet, state=SessionState.RUNNING)
            for name, run in _work(size).items():
                taken, floor = cpu_of(run, rounds), cpu_of(read_one, rounds)
                points.append(Point(f"live sessions: {name}", size, taken, ONE_ROW, floor))
    yield from points
    for name in dict.fromkeys(point.curve for point in points):
        first, *_, last = (point for point in points if point.curve == name)
        row, beside = f"{name}, each of {last.size:,}", f"each of {first.size:,}"
        each, at_first = last.amount / last.size, first.amount / first.size
        yield Figure(row, each, beside, at_first, limit=LIMIT if limited else None)


def _work(size: int) -> Mapping[str, Callable[[], None]]:
    held, lines = ingests.lease_all(), ingests.endless_lines()

    def ingest() -> None:
        batch = list(itertools.islice(lines, LINES))

        async def batches() -> list[Batch]:
            return [Batch(session_id, lease, batch, None) for session_id, lease in held]

        waiting = asyncio.run(batches())
        for start in range(0, size, AT_ONCE):
            done = write_batches(waiting[start : start + AT_ONCE], LockTimer())
            assert not [result for _, result in done if isinstance(result, Exception)]

    return {"sweep": partial(sweep, size), "ingest": ingest}
