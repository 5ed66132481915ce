"""Measure how the processor time of an entrance grows with the size of a hostile input.

Feed each shape of input in five sizes to the entrance, then assert that the cost grows at most in proportion, or stays
within a budget:

    growth = measure_growth(lambda text: render(text), shape=lambda size: "[" * size)
    growth.assert_bounded(budget=PAGE_LIMITS.cpu_seconds)

Processor time is that of this process, of all its threads and ended children, and of the fork servers in ``pools`` with
their ended children. Elapsed time would also measure what else the machine does.

A machine that becomes slower between two sizes makes a cost look as if it grew. So an assertion that fails measures all
sizes again, up to ``ROUNDS`` times: it fails only if no round agrees with it, nor the least of each size.
"""

from __future__ import annotations

import math
import os
import resource
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from sessions_app.confined.client import ConfinedPool
from sessions_app.rendering.pool import TEXT_POOL
from sessions_app.workflows.loader.client import POOL as LOADING_POOL

T = TypeVar("T")

SIZES: Final = (2_000, 4_000, 8_000, 16_000, 32_000)
ROUNDS: Final = 6
"""How often an assertion that fails is measured."""
MAX_SLOPE: Final = 1.2
FLOOR: Final = 0.05
"""Seconds below which a measurement says nothing: the kernel counts in hundredths, and requests have fixed costs."""
FLOOR_OF_CALLS: Final = 0.002
"""The same for calls within this process that have no fixed costs."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass
class Growth:
    """The cost of an entrance for inputs of growing sizes."""

    sizes: Sequence[int]
    measure: Callable[[int], float]
    """Measure the cost of one size now, in seconds of processor time."""
    floor: float = FLOOR
    rounds: list[list[float]] = field(default_factory=list)
    """The costs of all sizes, as often as they were measured."""

    def __post_init__(self) -> None:
        self.measure_round()

    def measure_round(self) -> None:
        """Measure each size once more, a little larger each time: what is remembered of the last one is no use."""
        number = len(self.rounds)
        self.rounds.append([self.measure(size + size * number // 50) for size in self.sizes])

    @property
    def least(self) -> list[float]:
        """The least cost of each size."""
        return [min(costs) for costs in zip(*self.rounds, strict=True)]

    @property
    def slope(self) -> float:
        """The lowest slope of a round, or of the least costs.

        If a machine becomes slower for good, the least costs are of different speeds; those of later rounds are not.
        """
        return min(self._slope(costs) for costs in (*self.rounds, self.least))

    @property
    def most(self) -> float:
        """The cost in seconds of the most expensive size."""
        return max(self.least)

    def assert_bounded(self, *, budget: float = 0.0, max_slope: float = MAX_SLOPE) -> None:
        """Assert that the cost grows at most in proportion to the size, or stays within ``budget`` seconds."""
        self._assert(lambda: self.slope <= max_slope or self.most <= budget)

    def assert_within(self, budget: float) -> None:
        """Assert that every size costs at most ``budget`` seconds."""
        self._assert(lambda: self.most <= budget)

    def _assert(self, holds: Callable[[], bool]) -> None:
        while not holds():
            assert len(self.rounds) < ROUNDS, f"slope {self.slope:.2f}, at most {self.most:.3f} s: {self}"
            self.measure_round()

    def _slope(self, costs: Sequence[float]) -> float:
        # The slope of the line that fits best on logarithmic scales. Costs below the floor are raised to it, so that a
        # constant cost has slope 0, whatever its noise.
        return statistics.linear_regression(
            [math.log(size) for size in self.sizes], [math.log(max(cost, self.floor)) for cost in costs]
        ).slope

    def __str__(self) -> str:
        rows = zip(self.sizes, zip(*self.rounds, strict=True), strict=True)
        return ", ".join(f"{size:,}: {' '.join(f'{cost:.3f}' for cost in costs)} s" for size, costs in rows)


def measure_growth(
    entrance: Callable[[T], Any],
    shape: Callable[[int], T],
    *,
    sizes: Sequence[int] = SIZES,
    pools: Sequence[ConfinedPool] = (TEXT_POOL, LOADING_POOL),
    floor: float = FLOOR,
) -> Growth:
    """Return the cost of ``entrance(shape(size))`` for each size; the first, cheapest call is made once before."""

    def measure(size: int) -> float:
        given = shape(size)
        before = cpu_seconds(pools)
        entrance(given)
        return cpu_seconds(pools) - before

    measure(sizes[0] // 2)
    return Growth(sizes, measure, floor)


def assert_costs_at_most(seconds: float, work: Callable[[], Any]) -> None:
    """Assert that one of ``ROUNDS`` calls takes at most so much processor time."""
    costs: list[float] = []
    while not costs or min(costs) > seconds:
        assert len(costs) < ROUNDS, f"more than {seconds} s: {costs}"
        before = cpu_seconds(())
        work()
        costs.append(cpu_seconds(()) - before)


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
