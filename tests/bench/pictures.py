"""Growth curves as SVG: both axes logarithmic, one line for the measurements and one for the floor.

Written without a library, so that the documents need no script. The files look right in light and dark mode, and
commits of them can be compared as text.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Final

from tests.bench.figures import Point

WIDTH: Final = 640
HEIGHT: Final = 360
LEFT: Final = 80
RIGHT: Final = 32
TOP: Final = 48
BOTTOM: Final = 48
STYLE: Final = """
.page { fill: #ffffff }
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-size: 15px; font-weight: 600 }
.grid { stroke: #d1d9e0 }
.ours { stroke: #0969da; fill: none; stroke-width: 2.5 }
.floor { stroke: #6e7781; fill: none; stroke-width: 2; stroke-dasharray: 6 4 }
.of-ours { fill: #0969da } .of-floor { fill: #6e7781 }
@media (prefers-color-scheme: dark) {
  .page { fill: #0d1117 } text { fill: #e6edf3 } .grid { stroke: #3d444d }
  .ours { stroke: #4493f8 } .floor { stroke: #9198a1 } .of-ours { fill: #4493f8 } .of-floor { fill: #9198a1 }
}"""


class Axis:
    """A logarithmic axis that begins and ends at a power of ten."""

    def __init__(self, values: Iterable[float], start: float, end: float):
        logs = [math.log10(value) for value in values]
        self.first, self.last = math.floor(min(logs)), math.ceil(max(logs))
        self.last += self.last == self.first
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        """Return the position of a value."""
        share = (math.log10(value) - self.first) / (self.last - self.first)
        return round(self._start + share * (self._end - self._start), 1)

    @property
    def ticks(self) -> list[float]:
        """Return the powers of ten on the axis."""
        return [10.0**power for power in range(self.first, self.last + 1)]


def draw(points: Sequence[Point], directory: Path) -> list[Path]:
    """Write a file for each curve; return their paths."""
    curves: defaultdict[str, list[Point]] = defaultdict(list)
    for point in points:
        curves[point.curve].append(point)
    return [_write(directory / f"{file_name(name)}.svg", name, some) for name, some in curves.items()]


def file_name(curve: str) -> str:
    """Return the name of a curve's file, without suffix."""
    return "-".join(re.findall(r"\w+", f"growth {curve}"))


def _write(path: Path, name: str, points: Sequence[Point]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(picture(name, points), encoding="utf-8")
    return path


def picture(name: str, points: Sequence[Point]) -> str:
    """Return the SVG of one curve."""
    points = sorted(points, key=lambda point: point.size)
    x = Axis([point.size for point in points], LEFT, WIDTH - RIGHT)
    y = Axis([value for point in points for value in (point.amount, point.floor_amount)], HEIGHT - BOTTOM, TOP)
    description = "; ".join(f"{point.size:,}: {_time(point.amount)}" for point in points)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="t d">',
        f'<title id="t">{escape(name)}</title><desc id="d">{escape(description)}</desc><style>{STYLE}</style>',
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="title" x="{LEFT}" y="20">{escape(name)}</text>',
        *(_vertical(x.at(tick), f"{tick:,.0f}") for tick in x.ticks),
        *(_horizontal(y.at(tick), _time(tick)) for tick in y.ticks),
        *_line(
            "floor", [(x.at(point.size), y.at(point.floor_amount)) for point in points], f"floor: {points[0].floor}"
        ),
        *_line("ours", [(x.at(point.size), y.at(point.amount)) for point in points], "Kandev"),
    ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _vertical(x: float, label: str) -> str:
    y = HEIGHT - BOTTOM
    line = f'<line class="grid" x1="{x}" y1="{TOP}" x2="{x}" y2="{y}"/>'
    return f'{line}<text x="{x}" y="{y + 20}" text-anchor="middle">{label}</text>'


def _horizontal(y: float, label: str) -> str:
    line = f'<line class="grid" x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>'
    return f'{line}<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{label}</text>'


def _line(kind: str, places: Sequence[tuple[float, float]], label: str) -> list[str]:
    row = 20 if kind == "ours" else 38
    path = " ".join(f"{x},{y}" for x, y in places)
    return [
        f'<polyline class="{kind}" points="{path}"/>',
        *(f'<circle class="of-{kind}" cx="{x}" cy="{y}" r="3.5"/>' for x, y in places),
        f'<text class="of-{kind}" x="{WIDTH - RIGHT}" y="{row}" text-anchor="end">{escape(label)}</text>',
    ]


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
