"""The measurement of growth sees what it is there to see."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sessions_app.confined.client import ConfinedPool, TooExpensive
from sessions_app.confined.limits import Limits
from sessions_app.rendering.markdown import render_markdown
from tests.growth import Growth, measure_growth


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
    growth = Growth([(size, cost(size)) for size in (2_000, 4_000, 8_000, 16_000, 32_000)])
    if is_bounded:
        growth.assert_bounded()
        return
    with pytest.raises(AssertionError, match="slope"):
        growth.assert_bounded()
    growth.assert_bounded(budget=growth.most)


def test_hostile_text_outside_the_pool_is_found() -> None:
    growth = measure_growth(
        render_markdown, lambda size: f"```c\n{chr(10) * size}\n```", sizes=(500, 1_000, 2_000, 4_000), pools=()
    )
    with pytest.raises(AssertionError, match="slope"):
        growth.assert_bounded()


def test_cost_of_a_limited_process_is_counted() -> None:
    pool = ConfinedPool("tests.confined.operations")
    limits = Limits(cpu_seconds=0.5, seconds=60, memory=1 << 30)

    def burn(size: int) -> None:
        with pytest.raises(TooExpensive):
            pool.run("burn", {}, owner="ada", limits=limits)

    growth = measure_growth(burn, lambda size: size, sizes=(1, 2), pools=(pool,))
    pool.close()
    assert 0.3 < growth.most < 2
