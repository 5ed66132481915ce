"""What a benchmark tells: a time beside its floor, both measured in turn."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Run = Callable[[], object | Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: how long ``count`` things took, and how long the least that could do it, or a peer."""

    row: str
    amount: float
    """Seconds; megabytes where the unit is MB."""
    floor: str
    """What the floor or the peer is."""
    floor_amount: float
    unit: str = "ms"
    """``ms``, ``MB``, or things a second such as ``lines/s``."""
    count: int = 1
    limit: float | None = None
    """Of the ratio; below 1 where a peer is to be beaten."""

    @property
    def ratio(self) -> float:
        """How many times its floor; endless if that took less than the clock can tell."""
        return self.amount / self.floor_amount if self.floor_amount else math.inf

    @property
    def is_over(self) -> bool:
        """Whether a limit is broken."""
        return self.limit is not None and self.ratio > self.limit

    def shown(self, amount: float) -> str:
        """An amount of this row in its unit."""
        if self.unit == "MB":
            return f"{amount:,.1f}"
        return f"{amount * 1000:,.2f}" if self.unit == "ms" else f"{self.count / amount:,.0f}" if amount else "∞"


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


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a growth curve: seconds that ``size`` things took, and those of its floor."""

    curve: str
    size: int
    amount: float
    floor: str
    floor_amount: float


@dataclass(frozen=True, slots=True)
class Skipped:
    """A part of the run without rows, and why: a service is missing, or the part has failed."""

    part: str
    reason: str
    failed: bool = False


async def in_turn(rounds: int, *runs: Run) -> list[list[float]]:
    """Seconds of every round of each, taken in turn so that a busy moment hits all of them."""
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, seconds in zip(runs, taken, strict=True):
            seconds.append(await seconds_of(run))
    return taken


async def seconds_of(run: Run) -> float:
    """What one run takes."""
    began = time.perf_counter()
    done = run()
    if inspect.isawaitable(done):
        await done
    return time.perf_counter() - began
