"""``manage.py maintain``: run the maintenance that the worker runs every hour."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandParser

from sessions_app.maintenance.chore_run import ChoreRun
from sessions_app.maintenance.chores import CHORES, run_chores
from sessions_app.management.output import VisibleCommand
from sessions_app.management.startup import check_database, progress_bar


class Command(VisibleCommand):
    """Delete data that is provably no longer referenced."""

    help = "Run the hourly maintenance now: delete data that is no longer referenced, and report what was kept."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--dry-run", action="store_true", help="report what would be deleted, but change nothing")
        parser.add_argument("--json", action="store_true", help="print one JSON document")
        parser.add_argument(
            "--chore", action="append", default=[], choices=CHORES, help="run only this chore; repeatable"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the chores. Exits with 1 if one failed, and with 2 if the database cannot be used."""
        check_database()
        with progress_bar("", silent=options["json"]) as progress:
            done = run_chores(options["chore"], dry_run=options["dry_run"], progress=progress)
        if options["json"]:
            self.stdout.write(json.dumps(_document(done, dry_run=options["dry_run"]), indent=2))
        else:
            self._show(done, dry_run=options["dry_run"])
        if any(work.failed for work in done):
            sys.exit(1)

    def _show(self, done: Sequence[ChoreRun], *, dry_run: bool) -> None:
        verb = "removed"
        if dry_run:
            verb = "would remove"
        for work in done:
            line = f"{work.chore:<14} {verb} {work.removed}, kept {work.kept}"
            if work.failed:
                line += "  FAILED"
            self.stdout.write(line)
            for text in work.said:
                self.stdout.write(f"  {text}")


def _document(done: Sequence[ChoreRun], *, dry_run: bool) -> dict[str, Any]:
    names = ("removed", "kept", "failed", "said")
    chores = {work.chore: {name: getattr(work, name) for name in names} for work in done}
    for work in done:
        if work.reasons:
            chores[work.chore]["reasons"] = work.reasons
    return {"dry_run": dry_run, "chores": chores}
