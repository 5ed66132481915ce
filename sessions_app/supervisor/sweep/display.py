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
from sessions_app.services.sweep_results import SKIPPED, UNDER_WAY
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
    told = row["by_supervisor"] or row
    rule = told["rule"].replace("_", " ")
    if row["owner"] and not row["by_supervisor"]:
        rule = f"held by supervisor {row['owner'][:8]}"
    reason = "" if row["owner"] and told is row else told["error_message"] or told["reason"]
    return (
        row["task_title"][:40],
        row["session_id"][:8],
        row["runtime"],
        told["observed"],
        f"{row['session_state']}, {rule}",
        row["receipt_kind"] or "–",
        str(reason)[:120],
    )


def summary(document: Mapping[str, Any]) -> str:
    """One line: what was examined, what came of it or would come of it, and who holds or carries out the rest."""
    counts = dict(document["outcomes"])
    under_way = sum(row["result"] == UNDER_WAY for row in document["sessions"])
    counts[SKIPPED] -= under_way
    told = ", ".join(f"{count} {kind}" for kind, count in {**counts, "starting": under_way}.items() if count)
    dry_run = bool(document["dry_run"])
    mode = " (dry run: nothing was written)" if dry_run else ""
    would = "would be " if dry_run and told else ""
    parts = [
        f"{document['examined']} examined in {document['duration_ms']} ms: {would}{told or 'nothing to do'}{mode}.",
        _who_acts(document),
        _what_waits(document),
    ]
    return " ".join(filter(None, parts))


def _who_acts(document: Mapping[str, Any]) -> str:
    running = sorted(one[:8] for one in document["supervised_by"])
    if running:
        verb, whose = ("is", "it does") if len(running) == 1 else ("are", "they do")
        return f"Supervisor {', '.join(running)} {verb} running: {whose} the work, this is its report."
    owners = sorted({row["owner"][:8] for row in document["sessions"] if row["owner"]})
    return f"Held by supervisor {', '.join(owners)}." if owners else ""


def _what_waits(document: Mapping[str, Any]) -> str:
    count = len(document["unfinished"])
    if not count or document["supervised_by"]:
        return ""
    starts = f"{count} start waits" if count == 1 else f"{count} starts wait"
    here = "" if document["waited"] else ", or add --wait"
    return f"{starts} for a supervisor: run manage.py serve or supervise{here}."


def complaints(document: Mapping[str, Any], wait: float, *, everything: bool) -> list[str]:
    """What fails ``--strict``, a line each."""
    kinds = [("broken", "broken by this deploy"), *([("broken_before", "broken before")] if everything else [])]
    lines = [f"{told}: session {key} {document['broken_why'][key]}" for name, told in kinds for key in document[name]]
    count = len(document["unfinished"])
    if wait and count:
        lines.append(f"{count} start{'s' if count > 1 else ''} had not ended after {wait:g} s")
    if wait and not document["swept"]:
        lines.append(f"the supervisor had not finished its first sweep after {wait:g} s")
    return lines
