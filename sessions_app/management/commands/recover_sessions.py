"""``manage.py recover_sessions``: the sweep, for deploy hooks and people (interfaces 2)."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.dateparse import parse_datetime

from executors_app.plugins import runtimes
from sessions_app.management import recovery_pass
from sessions_app.management.startup import EXIT_COULD_NOT_RUN, check_database
from sessions_app.models import TaskSession
from sessions_app.supervisor.leases import LockUnusable
from sessions_app.supervisor.sweep.sweep_pass import SweepScope

WAIT_DEFAULT = 300.0
EXIT_BROKEN: Final = 1
"""Exit status with ``--strict``: this deploy broke a session."""
EXIT_UNFINISHED: Final = 3
"""Nothing is broken, but at the end of ``--wait`` starts or the supervisor's first sweep had not ended."""
EXIT_BROKEN_BEFORE: Final = 4
"""With ``--strict=all``: what is broken was broken before."""


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


def _moment(text: str) -> datetime:
    try:
        value = parse_datetime(text)
    except ValueError:
        value = None
    if value is None or value.tzinfo is None:
        raise ArgumentTypeError(f"{text!r} is no time with a time zone, as 2026-01-31T12:00:00Z")
    return value


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
        parser.add_argument(
            "--strict",
            nargs="?",
            choices=("deploy", "all"),
            const="deploy",
            default="",
            help="exit 1 if this deploy broke a session, 3 if starts had not ended; =all: 4 if one was broken before",
        )
        parser.add_argument("--since", type=_moment, metavar="TIME", help="when the deploy began, with a time zone")

    def handle(self, *args: Any, **options: Any) -> None:
        """Sweep once; exit 0; 1, 3 or 4 with ``--strict``; 2 when it could not run."""
        check_database()
        self._check_sessions(options["session"])
        scope = SweepScope(
            trigger="command",
            sessions=frozenset(options["session"]),
            runtime=options["runtime"],
            concurrency=options["concurrency"],
            timeout=options["timeout"],
            dry_run=options["dry_run"],
        )
        view = recovery_pass.SweepView(json=options["json"], explain=options["explain"])
        with view.progress() as progress:
            ask = recovery_pass.RecoveryOptions(scope, options["wait"], options["since"])
            try:
                result, document = asyncio.run(recovery_pass.run_recovery_pass(ask, progress))
            except LockUnusable as error:
                raise CommandError(str(error), returncode=EXIT_COULD_NOT_RUN) from error
        if options["json"]:
            self.stdout.write(json.dumps(document, indent=2))
        else:
            view.show(document, result)
        if options["strict"]:
            self._judge(document, options["wait"], everything=options["strict"] == "all")

    def _judge(self, document: Mapping[str, Any], wait: float, *, everything: bool) -> None:
        """Exit with the status of the worst that there is; say all of it on stderr."""
        for line in recovery_pass.strict_failures(document, wait, everything=everything):
            self.stderr.write(line)
        if document["broken"]:
            sys.exit(EXIT_BROKEN)
        if wait and (document["unfinished"] or not document["swept"]):
            sys.exit(EXIT_UNFINISHED)
        if everything and document["broken_before"]:
            sys.exit(EXIT_BROKEN_BEFORE)

    def _check_sessions(self, ids: Collection[uuid.UUID]) -> None:
        """Refuse a session that is not there: looking at nothing would look like success."""
        missing = set(ids) - set(TaskSession.objects.filter(id__in=ids).values_list("id", flat=True))
        if missing:
            raise CommandError(f"there is no session {min(missing)}", returncode=EXIT_COULD_NOT_RUN)
