"""Results of benchmarks: times beside their floors, measured alternately."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

TOKENS = "tokens of 4 bytes"
"""The unit of what a model reads: no tokenizer has counted it."""
Run = Callable[[], object | Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: the time for ``count`` things, and the time of a floor or of another system for the same."""

    row: str
    amount: float
    """Seconds; megabytes or kilobytes if the unit is MB or kB, and tokens if it is ``TOKENS``."""
    floor: str
    """Description of the floor or of the other system."""
    floor_amount: float
    unit: str = "ms"
    """``ms``, ``MB``, ``kB``, ``TOKENS``, or things per second such as ``lines/s``."""
    count: int = 1
    limit: float | None = None
    """Maximum of the ratio; below 1 if we have to beat another system."""

    @property
    def ratio(self) -> float:
        """Return the amount divided by its floor; infinite if the floor took less than the clock can measure."""
        return self.amount / self.floor_amount if self.floor_amount else math.inf

    @property
    def is_over(self) -> bool:
        """Return whether the limit is exceeded."""
        return self.limit is not None and self.ratio > self.limit

    def shown(self, amount: float) -> str:
        """Return an amount as text in the unit of this row."""
        if self.unit in ("MB", "kB"):
            return f"{amount:,.1f}"
        if self.unit == "ms":
            return f"{amount * 1000:,.2f}"
        if self.unit == TOKENS:
            return f"{amount:,.0f}"
        if not amount:
            return "∞"
        return f"{self.count / amount:,.0f}"


@dataclass(frozen=True, slots=True)
class Floor:
    """A physical floor of this machine and of the machine on which the design was measured, in microseconds."""

    name: str
    measured: float
    known: float

    @property
    def is_off(self) -> bool:
        """Return whether they differ by more than half: ratios are still valid, absolute figures do not compare."""
        return abs(self.measured / self.known - 1) > 0.5


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a growth curve: the seconds for ``size`` things, and those of its floor."""

    curve: str
    size: int
    amount: float
    floor: str
    floor_amount: float


@dataclass(frozen=True, slots=True)
class Skipped:
    """A part of the run without rows, and the reason: a missing service or a failure."""

    part: str
    reason: str
    failed: bool = False


async def in_turn(rounds: int, *runs: Run) -> list[list[float]]:
    """Return the seconds of every round of each function, measured alternately so that load affects all alike."""
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, seconds in zip(runs, taken, strict=True):
            seconds.append(await seconds_of(run))
    return taken


async def seconds_of(run: Run) -> float:
    """Return the seconds of one run."""
    began = time.perf_counter()
    done = run()
    if inspect.isawaitable(done):
        await done
    return time.perf_counter() - began
