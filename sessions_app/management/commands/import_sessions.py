"""``manage.py import_sessions``: import sessions from the portable record."""

from __future__ import annotations

import sys
from argparse import SUPPRESS
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser
from rich.markup import escape
from rich.table import Table

from sessions_app.kernel.rules.wording import plural
from sessions_app.management.console import VisibleConsole
from sessions_app.management.output import VisibleCommand
from sessions_app.management.startup import EXIT_COULD_NOT_RUN, check_database, progress_bar, report_database_errors
from sessions_app.portable.importer import ImportResult, import_sessions
from sessions_app.portable.reader import list_records
from sessions_app.portable.rows.parents import DEFAULT_TEAM

TABLE_WIDTH: Final = 200
"""Characters of a line where there is no terminal."""
OUTCOME_STYLES: Final = {"imported": "imported", "there": "already there", "skipped": "skipped"}


class Command(VisibleCommand):
    """Import sessions as stopped: none of them runs until a user resumes it."""

    help = "Import sessions from the portable record. Sessions that already exist are left unchanged."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the directory and the options."""
        parser.usage = SUPPRESS  # so that a bad argument is reported in one line
        parser.add_argument(
            "directory", metavar="DIR", type=Path, help="directory “sessions” of a record, or its parent"
        )
        parser.add_argument("--dry-run", action="store_true", help="report what would be imported, but change nothing")
        parser.add_argument(
            "--team", default=DEFAULT_TEAM, help="team for sessions whose record names none (default: %(default)s)"
        )

    def handle(self, *args: Any, directory: Path, dry_run: bool, team: str, **options: Any) -> None:
        """Import. Exits with 0 if everything was imported, 1 if something was left out, 2 if it could not run."""
        check_database()
        try:
            folder = _record_folder(directory)
            with report_database_errors(), progress_bar("importing", timed=True) as progress:
                results = import_sessions(folder, team, progress, dry_run=dry_run)
        except OSError as error:
            raise CommandError(
                f"{directory} cannot be read: {error.strerror}", returncode=EXIT_COULD_NOT_RUN
            ) from error
        width: int | None = TABLE_WIDTH
        if sys.stdout.isatty():
            width = None  # that of the terminal
        print_results(VisibleConsole(width=width), results, dry_run=dry_run)
        if any(result.findings for result in results):
            sys.exit(1)


def _record_folder(directory: Path) -> Path:
    """Return the record's directory, given it or a data directory."""
    inner = directory / "sessions"
    if inner.is_dir() and not list_records(directory):
        return inner
    return directory


def print_results(console: VisibleConsole, results: Sequence[ImportResult], *, dry_run: bool) -> None:
    """Print a table of the sessions, what was left out, notes, and a summary line."""
    table = Table("session", "task", "", "events", "messages", "held", box=None, header_style="bold", pad_edge=False)
    for result in results:
        cells = [escape(result.stem), escape(result.title[:50]), OUTCOME_STYLES[result.outcome]]
        if result.outcome == "imported":
            cells += [str(result.events), str(result.messages), str(result.held)]
        table.add_row(*cells)
    if results:
        console.print(table)
    for result in results:
        for finding in result.findings:
            place = finding.file
            if finding.line:
                place = f"{finding.file}:{finding.line}"
            console.print(f"{escape(place)}: {escape(finding.problem)}", highlight=False, soft_wrap=True)
        if result.unlisted:
            more = plural(result.unlisted, "1 more problem is", "{} more problems are")
            console.print(f"{escape(result.stem)}: {more} not listed", highlight=False, soft_wrap=True)
        for note in result.notes:
            console.print(f"{escape(result.stem)}: {escape(note)}", highlight=False, soft_wrap=True)
    console.print(summary_line(results, dry_run=dry_run), highlight=False)


def summary_line(results: Sequence[ImportResult], *, dry_run: bool) -> str:
    """Return one line with the number of sessions by outcome."""
    if not results:
        return "There are no sessions in this directory."
    count = {name: sum(result.outcome == name for result in results) for name in OUTCOME_STYLES}
    outcomes = ", ".join(f"{count[name]} {words}" for name, words in OUTCOME_STYLES.items() if count[name])
    held = sum(result.held for result in results)
    left_out = sum(len(result.findings) + result.unlisted for result in results)
    line = f"{plural(len(results), '1 session', '{} sessions')}: {outcomes}"
    if held:
        line += f"; {plural(held, '1 prompt', '{} prompts')} held"
    if left_out:
        line += f"; {plural(left_out, '1 item', '{} items')} left out"
    if dry_run:
        line += " (dry run: nothing was written)"
    return f"{line}."
