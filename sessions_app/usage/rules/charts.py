"""The bars of charts, as rectangles of a drawing (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 1000.0
HEIGHT: Final = 120.0
_GAP: Final = 0.2
"""Part of a bar's place that is left empty."""
_LEAST: Final = 2.0
"""Height of the smallest bar that is not zero, so that it can be seen."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of the chart, from the bottom upwards."""

    x: float
    y: float
    width: float
    height: float
    title: str


def columns(values: Sequence[tuple[str, int]]) -> list[Bar]:
    """Return one bar for each value, side by side over the whole width; the values are titles and numbers."""
    if not values:
        return []
    most = max(number for _, number in values)
    place = WIDTH / len(values)
    bars = []
    for position, (title, number) in enumerate(values):
        height = bar_length(number, most, HEIGHT)
        x = position * place + place * _GAP / 2
        bars.append(Bar(round(x, 2), round(HEIGHT - height, 2), round(place * (1 - _GAP), 2), height, title))
    return bars


def bar_length(number: int, most: int, whole: float) -> float:
    """Return the length of a bar for ``number``, of which the longest, for ``most``, has the length ``whole``."""
    if number <= 0 or most <= 0:
        return 0.0
    return round(max(_LEAST, whole * number / most), 2)
