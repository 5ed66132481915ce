"""What a benchmark tells: a time beside its floor, both measured in turn."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Run = Callable[[], object | Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: how long ``count`` things took, and how long the least that could do it."""

    row: str
    seconds: float
    floor: str
    """What the floor is."""
    floor_seconds: float
    unit: str = "ms"
    """``ms``, or things a second such as ``lines/s``."""
    count: int = 1
    limit: float | None = None

    @property
    def ratio(self) -> float:
        """How many times its floor."""
        return self.seconds / self.floor_seconds

    @property
    def is_over(self) -> bool:
        """Whether a limit is broken."""
        return self.limit is not None and self.ratio > self.limit

    def shown(self, seconds: float) -> str:
        """A time of this row in its unit."""
        return f"{seconds * 1000:,.2f}" if self.unit == "ms" else f"{self.count / seconds:,.0f}"


@dataclass(frozen=True, slots=True)
class Floor:
    """A physical floor of this machine beside what it was where the design was measured; microseconds."""

    name: str
    measured: float
    known: float

    @property
    def strays(self) -> bool:
        """Whether it is off by more than half: ratios still hold, absolute figures do not compare."""
        return abs(self.measured / self.known - 1) > 0.5


async def in_turn(rounds: int, *runs: Run) -> list[list[float]]:
    """Seconds of every round of each, taken in turn so that a busy moment hits all of them."""
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, seconds in zip(runs, taken, strict=True):
            seconds.append(await _seconds_of(run))
    return taken


async def _seconds_of(run: Run) -> float:
    began = time.perf_counter()
    done = run()
    if inspect.isawaitable(done):
        await done
    return time.perf_counter() - began
