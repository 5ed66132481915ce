"""``manage.py start_queue``: list the sessions whose start waits, with their position and the cause."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser

from sessions_app.kernel.rules.wording import plural
from sessions_app.management.output import VisibleCommand
from sessions_app.management.startup import report_database_errors
from sessions_app.sessions.services.start_queue import list_waiting_starts


class Command(VisibleCommand):
    """List the starts that wait; changes nothing."""

    help = "List the sessions whose start waits for a place, a host or a repository, with position and cause."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--json", action="store_true", help="print one JSON document")

    def handle(self, *args: Any, **options: Any) -> None:
        """List. Exits with status 2 and one line if the database cannot be used."""
        with report_database_errors():
            rows = list_waiting_starts()
        if options["json"]:
            self.stdout.write(json.dumps({"starts": rows}, indent=2))
            return
        for row in rows:
            self.stdout.write(_line(row))
        self.stdout.write(plural(len(rows), "1 start waits", "{} starts wait"))


def _line(row: Mapping[str, Any]) -> str:
    where = row["executor"]
    if row["pool"]:
        where = f"pool {row['pool']}"
    cause = row["text"] or row["reason"]
    if row["host"]:
        cause = f"{cause} {row['host']}"
    return f"{row['session']}  {where}  {row['before']} before it  {cause}"
