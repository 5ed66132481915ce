"""Comparison of two runs by the ratios to their own floors, so that machines and busy hours matter less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from tests.bench.figures import Figure
from tests.bench.keeping import BenchFile

WORSE: float = 1.5
"""A row is worse if its ratio grew by this factor; smaller changes are noise on a shared machine."""


@dataclass(frozen=True, slots=True)
class Change:
    """One row of two runs; None where only one run has it."""

    row: str
    floor: str
    before: Figure | None
    after: Figure | None

    @property
    def times(self) -> float | None:
        """Return by which factor the ratio to the floor has grown; None without both figures."""
        if self.before is None or self.after is None:
            return None
        return self.after.ratio / self.before.ratio

    @property
    def verdict(self) -> str:
        """Return *worse*, *better*, *same*, *new* or *gone*."""
        if self.times is None:
            return "gone" if self.after is None else "new"
        if self.times > WORSE:
            return "worse"
        return "better" if self.times < 1 / WORSE else "same"


def changes(before: BenchFile, after: BenchFile) -> list[Change]:
    """Return all rows of both runs, in the order of the later run."""
    old = {(one.row, one.floor): one for one in before.figures}
    new = {(one.row, one.floor): one for one in after.figures}
    keys = [*new, *(key for key in old if key not in new)]
    return [Change(*key, old.get(key), new.get(key)) for key in keys]


def comparison(before: BenchFile, after: BenchFile) -> Table:
    """Return the comparison as a table for people."""
    title = f"{_name(before)} → {_name(after)}"
    caption = "Compared are ratios: each figure to the floor of its own run."
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for name in ("row", "beside"):
        table.add_column(name, no_wrap=True)
    for name in ("before", "after", "unit", "ratio before", "ratio after", "times"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    colours = {"worse": "red", "better": "green"}
    for one in changes(before, after):
        shown = [_shown(one.before), _shown(one.after), (one.after or one.before).unit]  # type: ignore[union-attr]
        ratios = [f"{side.ratio:.2f}" if side else "–" for side in (one.before, one.after)]
        colour = colours.get(one.verdict, "default")
        times = f"{one.times:.2f}" if one.times is not None else "–"
        table.add_row(one.row, one.floor, *shown, *ratios, times, f"[{colour}]{one.verdict}[/]")
    return table


def _shown(figure: Figure | None) -> str:
    return figure.shown(figure.amount) if figure else "–"


def _name(run: BenchFile) -> str:
    quick = ", quick" if run.quick else ""
    return f"{run.commit[:10]}{'+' * run.dirty} of {run.date}{quick}"


def is_worse(found: Sequence[Change]) -> bool:
    """Return whether any row is worse."""
    return any(one.verdict == "worse" for one in found)
