"""Publish a bench file in the documents: the table of ``docs/performance.md`` and the growth curves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.bench import pictures
from tests.bench.figures import Figure, Floor
from tests.bench.keeping import BenchFile
from tests.services import ROOT

DOCS: Final = ROOT / "docs"
KEPT: Final = DOCS / "bench.json"
PAGE: Final = DOCS / "performance.md"
BEGIN: Final = "<!-- written by make bench: begin -->\n"
END: Final = "<!-- written by make bench: end -->\n"


def publish(run: BenchFile) -> list[Path]:
    """Write the file, the page and the pictures; return their paths."""
    run.write(KEPT)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + tables(run) + END + after, encoding="utf-8")
    return [KEPT, PAGE, *pictures.draw(run.points, DOCS / "pictures")]


def tables(run: BenchFile) -> str:
    """Return the text between the two marks of the page."""
    machine = ", ".join(f"{name} {value}" for name, value in run.machine.items())
    changed = " with changes" if run.dirty else ""
    parts = [
        f"\nCommit `{run.commit[:10]}`{changed}, {run.date}; {machine}.\n",
        _table(["row", "figure", "unit", "beside", "its figure", "ratio", "at most"], map(_row, run.figures)),
        _skipped(run),
        _table(["floor, µs", "here", "where it was designed"], map(_floor, run.floors)),
        "\n".join(f"![{name}](pictures/{pictures.file_name(name)}.svg)" for name in _curves(run)) + "\n",
    ]
    return "\n".join(filter(None, parts)) + "\n"


def _skipped(run: BenchFile) -> str:
    """Return which parts were not measured, and how long the run took; empty if an old file does not say."""
    lines = [f"Not measured: `{one.part}` ({one.reason}).\n" for one in run.skipped]
    if run.seconds:
        longest = sorted(run.seconds.items(), key=lambda one: -one[1])[:5]
        durations = ", ".join(f"`{name}` {seconds / 60:.1f}" for name, seconds in longest)
        lines.append(f"The parts took {sum(run.seconds.values()) / 60:.0f} minutes, of which {durations}.\n")
    return "\n".join(lines)


def _curves(run: BenchFile) -> list[str]:
    return list(dict.fromkeys(point.curve for point in run.points))


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _row(one: Figure) -> list[str]:
    limit = f"{one.limit:g}{', broken' * one.is_over}" if one.limit else "–"
    figures = (one.shown(one.amount), one.unit, one.floor, one.shown(one.floor_amount), f"{one.ratio:.2f}")
    return [one.row, *figures, limit]


def _floor(one: Floor) -> list[str]:
    return [one.name, f"{one.measured:,.2f}", f"{one.known:,.2f}"]
