"""``manage.py orphans``: what carries our marks and belongs to no session; removed only by name (rules, section 7)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from executors_app.domain import Orphan
from executors_app.errors import ExecutorError
from executors_app.runtimes import FindsOrphans
from sessions_app.services.maintenance import orphans

COULD_NOT_RUN = 2


class Command(BaseCommand):
    """List orphans; ``--remove`` ends and removes those that are named, after another look."""

    help = "Lists containers of this Kandev that no session has or a kill left behind; --remove NAME removes one."

    def add_arguments(self, parser: CommandParser) -> None:
        """``--json`` and ``--remove``."""
        parser.add_argument("--json", action="store_true", help="print one JSON document")
        parser.add_argument("--remove", action="append", default=[], metavar="NAME", help="may be given again")

    def handle(self, *args: Any, **options: Any) -> None:
        """Exit 0; 1 where something that was named is no orphan or could not be removed; 2 could not look."""
        places = orphans.places()
        found: dict[str, list[Orphan]] = {}
        silent: list[str] = []
        for name, place in places.items():
            try:
                found[name] = orphans.look(name, place)
            except ExecutorError as error:
                if orphans.configs_of(name):  # else it is not used here
                    self.stderr.write(f"{name}: {error.message}")
                    silent.append(name)
        self._show(found, as_json=options["json"])
        if silent and not options["remove"]:
            raise CommandError(f"{', '.join(silent)} could not be asked", returncode=COULD_NOT_RUN)
        self._remove(options["remove"], found, places)

    def _show(self, found: Mapping[str, list[Orphan]], *, as_json: bool) -> None:
        rows = [{"runtime": name, **asdict(one)} for name, orphans in found.items() for one in orphans]
        if as_json:
            self.stdout.write(json.dumps({"orphans": rows}, indent=2))
            return
        for row in rows:
            self.stdout.write(f"{row['runtime']}  {row['id']}  {row['status']}")
        self.stdout.write(f"{len(rows)} orphans")

    def _remove(self, names: list[str], found: Mapping[str, list[Orphan]], places: Mapping[str, FindsOrphans]) -> None:
        there = {one.id: (name, one) for name, listed in found.items() for one in listed}
        for wanted in names:
            if wanted not in there:
                raise CommandError(f"{wanted} is no orphan of this Kandev; nothing was done about it")
            name, one = there[wanted]
            place = places[name]
            try:
                removed = asyncio.run(place.remove_orphan(one, orphans.configs_of(name)))
            except ExecutorError as error:
                raise CommandError(f"{wanted}: {error.message}") from error
            if not removed:
                raise CommandError(f"{wanted} is not what it was listed as any more; nothing was done about it")
            self.stderr.write(f"{wanted} was removed")
