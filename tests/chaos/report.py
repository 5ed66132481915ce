"""The progress bar, the table of the kill-point matrix and the summary line."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final, TextIO

from executors_app.machine.crash_points import POINT_NAMES
from tests.chaos.behaviours import BEHAVIOURS, why_unreachable
from tests.chaos.matrix import Group, Outcome

WIDTH: Final = 30
SUMMARY_GROUPS: Final = {
    "duplicate prompts": ("no_duplicate_prompt",),
    "lost or duplicate events": ("no_lost_or_duplicate_event", "no_gap"),
    "orphans": ("orphans",),
}
"""The counts of the summary line, with the invariants that they add up."""


class ProgressBar:
    """A progress bar: a single updated line on a terminal, otherwise a line for each tenth."""

    def __init__(self, title: str, total: int, out: TextIO = sys.stderr):
        self.title, self.total, self.out = title, max(total, 1), out
        self.began = time.monotonic()
        self._last_tenth = -1

    def show(self, done: int, what: str = "") -> None:
        """Show that ``done`` of ``total`` are done."""
        full = WIDTH * done // self.total
        line = f"{self.title} [{'#' * full}{' ' * (WIDTH - full)}] {done}/{self.total}"
        line += f" {time.monotonic() - self.began:.0f} s {what}"
        if self.out.isatty():
            self.out.write(f"\r\033[K{line}" + ("\n" if done >= self.total else ""))
        elif (tenth := 10 * done // self.total) != self._last_tenth:
            self._last_tenth = tenth
            self.out.write(line + "\n")
        self.out.flush()


def matrix_table(groups: Sequence[Group], outcome: Outcome) -> str:
    """Return a line for each point and process: how many agents reached it, how often, and which cannot."""
    head = ("crash point", "process", "agents", "reached", "deaths", "not reachable")
    cells = {(point, group.process) for group in groups for point in group.points}
    lines = [(point, process) for point in POINT_NAMES for process in ("supervisor", "recover_sessions")]
    rows = [head, *(_row(*line, outcome) for line in lines if line in cells)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _row(point: str, process: str, outcome: Outcome) -> tuple[str, str, str, str, str, str]:
    reached = [name for name in BEHAVIOURS if outcome.reached[point, process, name]]
    count = sum(count for (name, by, _), count in outcome.reached.items() if (name, by) == (point, process))
    reasons = Counter(why for each in BEHAVIOURS.values() if (why := why_unreachable(point, each)))
    why = "; ".join(f"{count}: {reason}" for reason, count in reasons.items())
    process_name = process if process == "recover_sessions" else _process_of(point)
    return (point, process_name, str(len(reached)), str(count), str(outcome.deaths[point]), why)


def _process_of(point: str) -> str:
    first = point.partition(".")[0]
    return {"request": "web", "agentctl": "agentctl"}.get(first, "supervisor")


def summary(kills: int, seed: int, outcome: Outcome, unreached: Sequence[Group]) -> str:
    """Return the summary line."""
    found = Counter(violation.partition(":")[0] for violation in outcome.violations)
    counts = {title: sum(found[check] for check in checks) for title, checks in SUMMARY_GROUPS.items()}
    others = found.total() - sum(counts.values())
    parts = [f"{kills} random kills", *(f"{count} {title}" for title, count in counts.items())]
    parts.append(f"{others} other violations")
    parts.append(f"{len(unreached)} unreached points" if unreached else "no unreached point")
    return f"{', '.join(parts)} (seed {seed})"
