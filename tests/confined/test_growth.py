"""The measurement of growth sees what it is there to see."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from sessions_app.confined.client import ConfinedPool, TooExpensive
from sessions_app.confined.limits import Limits
from sessions_app.rendering.operations.markdown import render_markdown
from tests.confined.operations import burn
from tests.growth import FLOOR_OF_CALLS, ROUNDS, SIZES, Growth, assert_costs_at_most, measure_growth


@pytest.mark.parametrize(
    ("cost", "is_bounded"),
    [
        (lambda size: 0.001, True),
        (lambda size: size / 1_000, True),
        (lambda size: size**1.1 / 10_000, True),
        (lambda size: size**1.5 / 100_000, False),
        (lambda size: size**2 / 10_000_000, False),
    ],
)
def test_slope_decides_without_a_budget(cost: Callable[[int], float], is_bounded: bool) -> None:
    growth = Growth(SIZES, cost)
    if is_bounded:
        growth.assert_bounded()
        return
    with pytest.raises(AssertionError, match="slope"):
        growth.assert_bounded()
    growth.assert_bounded(budget=growth.most)


class Machine:
    """A machine whose speed changes: it multiplies the costs of each round by its factors, those of later ones by 1."""

    def __init__(self, cost: Callable[[int], float], *rounds: Sequence[float]) -> None:
        self.cost = cost
        self.factors = [factor for factors in rounds for factor in factors]

    def measure(self, size: int) -> float:
        return self.cost(size) * (self.factors.pop(0) if self.factors else 1)


SPEEDS: dict[str, list[list[float]]] = {
    "one disturbed measurement": [[1, 1, 1, 1, 9]],
    "slower and slower": [[1, 1, 2, 4, 8]],
    "slower for good": [[1, 1, 2, 4, 8], *([8.0] * 5 for _ in range(ROUNDS - 1))],
    "another disturbance in each round": [[1, 1, 1, 5, 5], [1, 1, 5, 5, 5], [1, 1, 1, 1, 9], [1, 1, 9, 5, 1]],
    "slow and fast in turn": [[1, 4, 1, 4, 4], [4, 1, 4, 1, 4]] * 3,
}


@pytest.mark.parametrize("factors", SPEEDS.values(), ids=SPEEDS)
def test_change_of_speed_is_no_growth(factors: list[list[float]]) -> None:
    Growth(SIZES, Machine(lambda size: size / 10_000, *factors).measure).assert_bounded()


@pytest.mark.parametrize("factors", SPEEDS.values(), ids=SPEEDS)
def test_change_of_speed_hides_no_growth(factors: list[list[float]]) -> None:
    growth = Growth(SIZES, Machine(lambda size: size**2 / 10_000_000, *factors).measure)
    with pytest.raises(AssertionError, match="slope"):
        growth.assert_bounded()


def test_costs_are_within_a_budget_if_one_round_shows_it() -> None:
    Growth(SIZES, Machine(lambda size: size / 10_000, [3] * 5).measure).assert_within(3.5)
    with pytest.raises(AssertionError, match=r"3\.2"):
        Growth(SIZES, lambda size: size / 10_000).assert_within(3.1)


def test_result_that_is_remembered_hides_no_growth() -> None:
    remembered = set[int]()

    def cost(size: int) -> float:
        if size in remembered:
            return 0
        remembered.add(size)
        return size**2 / 10_000_000

    growth = Growth(SIZES, cost)
    with pytest.raises(AssertionError, match="slope"):
        growth.assert_bounded()
    assert len(growth.rounds) == ROUNDS


def test_work_is_repeated_until_it_is_cheap_enough() -> None:
    done: list[None] = []

    def slow_at_first() -> None:
        done.append(None)
        burn({}, 0.05 if len(done) == 1 else 0)  # type: ignore[arg-type]

    assert_costs_at_most(0.04, slow_at_first)
    assert len(done) == 2
    with pytest.raises(AssertionError, match=r"more than 0\.01 s"):
        assert_costs_at_most(0.01, lambda: burn({}, 0.02))  # type: ignore[arg-type]


def test_hostile_text_outside_the_pool_is_found() -> None:
    growth = measure_growth(
        render_markdown,
        lambda size: f"```c\n{chr(10) * size}\n```",
        sizes=(250, 500, 1_000, 2_000),
        pools=(),
        floor=FLOOR_OF_CALLS,
    )
    with pytest.raises(AssertionError, match="slope"):
        growth.assert_bounded()


def test_cost_of_a_limited_process_is_counted() -> None:
    pool = ConfinedPool("tests.confined.operations")
    limits = Limits(cpu_seconds=0.5, seconds=60, memory=1 << 30)

    def burn_too_long(size: int) -> None:
        with pytest.raises(TooExpensive):
            pool.run("burn", {}, owner="ada", limits=limits)

    growth = measure_growth(burn_too_long, lambda size: size, sizes=(1, 2), pools=(pool,))
    pool.close()
    assert 0.3 < growth.most < 2
