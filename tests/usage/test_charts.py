"""The bars of charts fill their drawing, and a small number is still seen."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sessions_app.usage.rules.charts import HEIGHT, WIDTH, bar_length, columns


def test_bars_stand_side_by_side_on_the_ground() -> None:
    bars = columns([("a", 10), ("b", 5), ("c", 0)])
    assert [bar.height for bar in bars] == [HEIGHT, HEIGHT / 2, 0]
    assert all(round(bar.y + bar.height, 2) == HEIGHT for bar in bars)
    ends = [(bar.x, bar.x + bar.width) for bar in bars]
    assert all(before[1] < after[0] for before, after in pairwise(ends))
    assert (ends[0][0] > 0, ends[-1][1] < WIDTH) == (True, True)
    assert [bar.title for bar in bars] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("number", "most", "length"), [(0, 0, 0), (0, 9, 0), (1, 10**9, 2), (9, 9, 100), (10**12, 10**12, 100)]
)
def test_bar_is_as_long_as_its_share(number: int, most: int, length: float) -> None:
    assert bar_length(number, most, 100) == length


def test_chart_of_nothing_has_no_bars() -> None:
    assert columns([]) == []
    assert [bar.height for bar in columns([("a", 0)])] == [0]
