"""The tables of one run for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from tests.bench.figures import Figure, Floor, Point, Skipped


def figures_table(figures: Sequence[Figure]) -> Table:
    """Return every figure beside its floor."""
    table = Table(title="Figures and floors of this run", title_justify="left")
    table.add_column("row", no_wrap=True)
    table.add_column("figure", justify="right")
    table.add_column("unit")
    table.add_column("floor", justify="right")
    table.add_column("what the floor is", no_wrap=True)
    table.add_column("ratio", justify="right")
    table.add_column("limit", justify="right")
    table.add_column("verdict")
    for one in figures:
        table.add_row(
            one.row,
            one.shown(one.amount),
            one.unit,
            one.shown(one.floor_amount),
            one.floor,
            f"{one.ratio:.2f}",
            f"{one.limit:g}" if one.limit else "–",
            _verdict(one),
        )
    return table


def _verdict(figure: Figure) -> str:
    if figure.limit is None:
        return "–"
    return "[red]over[/red]" if figure.is_over else "[green]ok[/green]"


def points_table(points: Sequence[Point]) -> Table:
    """Return the growth curves as the cost per thing at each size."""
    table = Table(title="Growth, microseconds for each", title_justify="left")
    table.add_column("curve", no_wrap=True)
    table.add_column("size", justify="right")
    table.add_column("each", justify="right")
    table.add_column("floor", justify="right")
    table.add_column("what the floor is", no_wrap=True)
    for one in sorted(points, key=lambda point: (point.curve, point.size)):
        each = (f"{amount / one.size * 1e6:,.1f}" for amount in (one.amount, one.floor_amount))
        table.add_row(one.curve, f"{one.size:,}", *each, one.floor)
    return table


def floors_table(floors: Sequence[Floor]) -> Table:
    """Return the floors of this machine beside the known ones."""
    table = Table(title="Floors, microseconds", title_justify="left")
    table.add_column("floor", no_wrap=True)
    table.add_column("here", justify="right")
    table.add_column("known", justify="right")
    table.add_column("verdict")
    for one in floors:
        verdict = "[yellow]off by more than half[/yellow]" if one.is_off else "[green]ok[/green]"
        table.add_row(one.name, f"{one.measured:,.2f}", f"{one.known:,.2f}", verdict)
    return table


def skipped_table(skipped: Sequence[Skipped]) -> Table:
    """Return the parts without rows and the reasons."""
    table = Table(title="Not measured", title_justify="left")
    table.add_column("part", no_wrap=True)
    table.add_column("reason")
    for one in skipped:
        table.add_row(one.part, escape(one.reason), style="red" if one.failed else "")
    return table
