"""A sweep for people: progress bar, table, one summary line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sessions_app.domain.recovery import explain
from sessions_app.supervisor.sweep.one_pass import Progress as Report
from sessions_app.supervisor.sweep.one_pass import Sweep

WIDE = 200
"""Characters of a line where there is no terminal."""
COLUMNS = ("task", "session", "runtime", "observed", "decision", "receipt", "reason")


class View:
    """Prints one sweep."""

    def __init__(self, *, json: bool, explain: bool):
        self.json, self.explain = json, explain
        self.console = Console(width=None if sys.stdout.isatty() else WIDE)

    @contextmanager
    def progress(self) -> Iterator[Report]:
        """A progress bar on a terminal; nothing else anywhere else."""
        if self.json or not sys.stderr.isatty():
            yield lambda done, total: None
            return
        columns = (TextColumn("sweeping"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("sweep", total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def show(self, document: Mapping[str, Any], result: Sweep) -> None:
        """The table, the explanations where wanted, the summary."""
        if document["sessions"]:
            table = Table(*COLUMNS, box=None, header_style="bold", pad_edge=False)
            for row in document["sessions"]:
                table.add_row(*(escape(cell) for cell in _cells(row)))
            self.console.print(table)
        if self.explain:
            self._explain(result)
        self.console.print(summary(document), highlight=False)

    def _explain(self, result: Sweep) -> None:
        for item in result.decided:
            self.console.print(f"\n[bold]session {item.facts.session_id}[/bold]", highlight=False)
            for label, value in explain(item.facts, item.seen, item.decision):
                self.console.print(f"  {label:<16} {escape(str(value))}", highlight=False)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    state = f"{row['session_state']}, {row['rule'].replace('_', ' ')}"
    reason = row["error_message"] or row["reason"]
    return (
        row["task_title"][:40],
        row["session_id"][:8],
        row["runtime"],
        row["observed"],
        state,
        row["receipt_kind"] or "–",
        str(reason)[:120],
    )


def summary(document: Mapping[str, Any]) -> str:
    """One line: what was examined, what came of it, and who holds what was skipped."""
    counts = ", ".join(f"{count} {kind}" for kind, count in document["outcomes"].items() if count)
    owners = sorted({row["owner"][:8] for row in document["sessions"] if row["owner"]})
    held = f" Held by supervisor {', '.join(owners)}." if owners else ""
    mode = " (dry run: nothing was written)" if document["dry_run"] else ""
    told = counts or "nothing to do"
    return f"{document['examined']} examined in {document['duration_ms']} ms: {told}{mode}.{held}"
