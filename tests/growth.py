"""Measure how the processor time of an entrance grows with the size of a hostile input.

Feed each shape of input in five sizes to the entrance, then assert that the cost grows at most in proportion, or stays
within a budget:

    growth = measure_growth(lambda text: render(text), shape=lambda size: "[" * size)
    growth.assert_bounded(budget=PAGE_LIMITS.cpu_seconds)

Processor time is that of this process, of all its threads and ended children, and of the fork servers in ``pools`` with
their ended children. Elapsed time would also measure what else the machine does.
"""

from __future__ import annotations

import math
import os
import resource
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from sessions_app.confined.client import ConfinedPool
from sessions_app.rendering.pool import TEXT_POOL
from sessions_app.workflows.loader.client import POOL as LOADING_POOL

T = TypeVar("T")

SIZES: Final = (2_000, 4_000, 8_000, 16_000, 32_000)
MAX_SLOPE: Final = 1.2
FLOOR: Final = 0.05
"""Seconds below which a measurement says nothing: the kernel counts in hundredths, and requests have fixed costs."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Growth:
    """The cost of an entrance for inputs of growing sizes."""

    points: Sequence[tuple[int, float]]
    """Size and seconds of processor time."""

    @property
    def slope(self) -> float:
        """The slope of the line that fits the costs best on logarithmic scales.

        Costs below ``FLOOR`` are raised to it: a constant cost has slope 0, whatever its noise.
        """
        sizes = [math.log(size) for size, _ in self.points]
        costs = [math.log(max(seconds, FLOOR)) for _, seconds in self.points]
        return statistics.linear_regression(sizes, costs).slope

    @property
    def most(self) -> float:
        """The highest cost in seconds."""
        return max(seconds for _, seconds in self.points)

    def assert_bounded(self, *, budget: float = 0.0) -> None:
        """Assert that the cost grows at most in proportion to the size, or stays within ``budget`` seconds."""
        assert self.slope <= MAX_SLOPE or self.most <= budget, f"slope {self.slope:.2f}: {self}"

    def __str__(self) -> str:
        return ", ".join(f"{size:,}: {seconds:.2f} s" for size, seconds in self.points)


def measure_growth(
    entrance: Callable[[T], Any],
    shape: Callable[[int], T],
    *,
    sizes: Sequence[int] = SIZES,
    pools: Sequence[ConfinedPool] = (TEXT_POOL, LOADING_POOL),
) -> Growth:
    """Return the cost of ``entrance(shape(size))`` for each size; the first, cheapest call is made once before."""
    entrance(shape(sizes[0] // 2))
    points = []
    for size in sizes:
        given = shape(size)
        before = cpu_seconds(pools)
        entrance(given)
        points.append((size, cpu_seconds(pools) - before))
    return Growth(points)


def cpu_seconds(pools: Sequence[ConfinedPool] = (TEXT_POOL, LOADING_POOL)) -> float:
    """Return the processor time that this process and the servers of ``pools`` have used so far."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    ours = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return ours + sum(_server_seconds(pool._process.pid) for pool in pools if pool._process is not None)


def _server_seconds(pid: int) -> float:
    # The name of the program, in brackets, may contain spaces. From the field behind it, the 12th to 15th are the ticks
    # of the process and of its ended children.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS
