"""``manage.py orphans``: list processes, containers and files that belong to no session, and remove them by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser

from executors_app.runtimes import SupportsOrphans
from executors_app.wire.errors import ExecutorError
from sessions_app.kernel.rules.wording import plural
from sessions_app.maintenance import chores
from sessions_app.maintenance.chores import OrphanReport
from sessions_app.management.output import VisibleCommand
from sessions_app.management.startup import EXIT_COULD_NOT_RUN


class Command(VisibleCommand):
    """List orphans; ``--remove`` checks the named ones again, then ends and removes them."""

    help = (
        "List processes, containers and files of this installation that belong to no session. "
        "Executors that cannot be reached are listed. --remove NAME removes one orphan."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--json", action="store_true", help="print one JSON document")
        parser.add_argument(
            "--remove", action="append", default=[], metavar="NAME", help="end and remove this orphan; repeatable"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """List and remove. Exits with 1 if an orphan could not be removed, 2 if an executor could not be reached."""
        places = chores.searchable_runtimes()
        reports = {name: chores.find_orphans(name, place) for name, place in places.items()}
        silent = [
            {"runtime": name, "executor": executor, "message": message}
            for name, report in reports.items()
            for executor, message in report.silent.items()
        ]
        for one in silent:
            self.stderr.write(f"{one['executor']} ({one['runtime']}) could not be reached: {one['message']}")
        self._show(reports, silent, as_json=options["json"])
        not_asked = ", ".join(one["executor"] for one in silent)
        self._remove(options["remove"], reports, places, not_asked)
        if silent and not options["remove"]:
            raise CommandError(f"{not_asked} could not be reached", returncode=EXIT_COULD_NOT_RUN)

    def _show(self, reports: Mapping[str, OrphanReport], silent: list[dict[str, str]], *, as_json: bool) -> None:
        rows = [
            {"runtime": name, "executor": report.sources[one.id].name, **asdict(one)}
            for name, report in reports.items()
            for one in report.found
        ]
        if as_json:
            self.stdout.write(json.dumps({"orphans": rows, "not_asked": silent}, indent=2))
            return
        for row in rows:
            self.stdout.write(f"{row['runtime']}  {row['id']}  {row['status']}")
        self.stdout.write(plural(len(rows), "1 orphan", "{} orphans"))

    def _remove(
        self,
        names: list[str],
        reports: Mapping[str, OrphanReport],
        places: Mapping[str, SupportsOrphans],
        not_asked: str,
    ) -> None:
        there = {one.id: (name, one) for name, report in reports.items() for one in report.found}
        for wanted in names:
            if wanted not in there:
                if not_asked:
                    hint = f" It may be on {not_asked}, which could not be reached."
                else:
                    hint = ""
                raise CommandError(f"{wanted} is not an orphan of this installation; nothing was changed.{hint}")
            name, one = there[wanted]
            try:
                # Only on the executor that has it: one that cannot be reached must not prevent removals elsewhere.
                removed = asyncio.run(places[name].remove_orphan(one, reports[name].sources[wanted].configs))
            except ExecutorError as error:
                raise CommandError(f"{wanted}: {error.message_for_staff}") from error
            if not removed:
                raise CommandError(f"{wanted} has changed since it was listed; nothing was removed")
            self.stderr.write(f"{wanted} was removed")
