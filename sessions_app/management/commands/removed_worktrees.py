"""``manage.py removed_worktrees``: list the worktrees in the trash of this host, and bring them back."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from sessions_app.kernel.rules.wording import plural
from sessions_app.maintenance import worktrees
from sessions_app.management.output import VisibleCommand
from sessions_app.management.startup import report_database_errors
from sessions_app.models import RemovedWorktree


class Command(VisibleCommand):
    """List the worktrees in the trash; ``--bring-back`` moves one back to its place, exactly as it was."""

    help = (
        "List the worktrees that maintenance has moved into the trash of this host. "
        "--bring-back SESSION moves one back to its place, as it was."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--json", action="store_true", help="print one JSON document")
        parser.add_argument(
            "--bring-back", action="append", default=[], metavar="SESSION", help="id of a session; repeatable"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """List or bring back. Exits with 1 if a worktree cannot be brought back."""
        with report_database_errors():
            rows = {str(row.session_id): row for row in worktrees.in_trash()}
            for session_id in options["bring_back"]:
                self._bring_back(session_id, rows)
        if not options["bring_back"]:
            self._list(list(rows.values()), as_json=options["json"])

    def _bring_back(self, session_id: str, rows: dict[str, RemovedWorktree]) -> None:
        row = rows.get(session_id)
        if row is None:
            raise CommandError(f"The trash of this host has no worktree of session {session_id}.")
        if not worktrees.bring_back(row):
            raise CommandError(f"{row.path} exists already, or its files are gone from the trash.")
        self.stdout.write(f"{row.path} is back.")

    def _list(self, rows: list[RemovedWorktree], *, as_json: bool) -> None:
        if as_json:
            self.stdout.write(json.dumps([_document(row) for row in rows], indent=2))
            return
        for row in rows:
            line = f"{row.session_id}  {row.branch}  moved {row.moved_at:%Y-%m-%d %H:%M}"
            if row.kept_because:
                line += f"  stays: {row.kept_because}"
            self.stdout.write(line)
        self.stdout.write(plural(len(rows), "1 worktree in the trash", "{} worktrees in the trash"))


def _document(row: RemovedWorktree) -> dict[str, Any]:
    return {
        "session_id": str(row.session_id),
        "path": row.path,
        "branch": row.branch,
        "head": row.head,
        "moved_at": row.moved_at.isoformat(),
        "kept_because": row.kept_because,
    }
