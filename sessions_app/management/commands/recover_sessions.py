"""``manage.py recover_sessions``: the sweep, for deploy hooks and people (interfaces 2)."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Collection
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from executors_app.plugins import runtimes
from sessions_app.management.database_check import COULD_NOT_RUN, check_database
from sessions_app.models import TaskSession
from sessions_app.supervisor.sweep import command_pass, display
from sessions_app.supervisor.sweep.one_pass import Scope

WAIT_DEFAULT = 300.0


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise ArgumentTypeError(f"{text!r} is no positive number")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


def _session_id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no session id") from None


class Command(BaseCommand):
    """Look at every execution that claims to run, and bring back what should."""

    help = "Finds running sessions again, reattaches or resumes them, and says what became of each."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """The flags of interfaces 2."""
        parser.usage = SUPPRESS  # else a bad argument is told in many lines
        parser.add_argument("--dry-run", action="store_true", help="observe and decide, write nothing")
        parser.add_argument("--explain", action="store_true", help="print the facts and the rule for each session")
        parser.add_argument("--json", action="store_true", help="print one JSON document")
        parser.add_argument("--session", action="append", default=[], type=_session_id, metavar="ID")
        parser.add_argument("--runtime", default="", choices=sorted(runtimes()), metavar="NAME")
        parser.add_argument("--concurrency", type=_count, default=0, metavar="N")
        parser.add_argument("--timeout", type=_positive, default=0.0, metavar="S", help="seconds for each answer")
        parser.add_argument("--wait", nargs="?", type=_positive, const=WAIT_DEFAULT, default=0.0, metavar="S")
        parser.add_argument("--strict", action="store_true", help="exit 1 if some session ended in ERROR")

    def handle(self, *args: Any, **options: Any) -> None:
        """Sweep once; exit 0, 1 with ``--strict``, 2 when it could not run."""
        check_database()
        self._check_sessions(options["session"])
        scope = Scope(
            trigger="command",
            sessions=frozenset(options["session"]),
            runtime=options["runtime"],
            concurrency=options["concurrency"],
            timeout=options["timeout"],
            dry_run=options["dry_run"],
        )
        view = display.View(json=options["json"], explain=options["explain"])
        with view.progress() as progress:
            result, document = asyncio.run(command_pass.run(scope, options["wait"], progress))
        if options["json"]:
            self.stdout.write(json.dumps(document, indent=2))
        else:
            view.show(document, result)
        if options["strict"] and any(row["session_state"] == "ERROR" for row in document["sessions"]):
            sys.exit(1)

    def _check_sessions(self, ids: Collection[uuid.UUID]) -> None:
        """Refuse a session that is not there: looking at nothing would look like success."""
        missing = set(ids) - set(TaskSession.objects.filter(id__in=ids).values_list("id", flat=True))
        if missing:
            raise CommandError(f"there is no session {min(missing)}", returncode=COULD_NOT_RUN)
