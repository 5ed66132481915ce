"""``manage.py recover_sessions``: one sweep, for deploy hooks and administrators."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from executors_app.plugins import runtimes
from sessions_app.management.output import VisibleCommand
from sessions_app.management.startup import EXIT_COULD_NOT_RUN, check_database, progress_bar
from sessions_app.models import TaskSession
from sessions_app.recovery import recovery_pass
from sessions_app.recovery.sweep.sweep_pass import SweepScope
from sessions_app.supervisor.leases import LockUnusable

WAIT_DEFAULT = 300.0
EXIT_BROKEN: Final = 1
"""Exit status with ``--strict``: this deploy broke a session."""
EXIT_UNFINISHED: Final = 3
"""Nothing is broken, but starts or the supervisor's first sweep were unfinished at the end of ``--wait``."""
EXIT_BROKEN_BEFORE: Final = 4
"""With ``--strict=all``: what is broken was broken before."""


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise ArgumentTypeError(f"{text!r} is not a positive number")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _session_id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a session id") from None


def _moment(text: str) -> datetime:
    try:
        value = parse_datetime(text)
    except ValueError:
        value = None
    if value is None or value.tzinfo is None:
        raise ArgumentTypeError(f"{text!r} is not a time with a time zone, such as 2026-01-31T12:00:00Z")
    if value > timezone.now():
        raise ArgumentTypeError(f"{text} is in the future: a deploy that has not begun cannot have broken a session")
    return value


class Command(VisibleCommand):
    """Examine every live execution, and recover the sessions that should be running."""

    help = "Reattach or resume the sessions that should be running, and report the result for each."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.usage = SUPPRESS  # so that a bad argument is reported in one line
        parser.add_argument("--dry-run", action="store_true", help="observe and decide, but change nothing")
        parser.add_argument("--explain", action="store_true", help="print the facts and the rule behind each decision")
        parser.add_argument("--json", action="store_true", help="print one JSON document")
        parser.add_argument(
            "--session",
            action="append",
            default=[],
            type=_session_id,
            metavar="ID",
            help="only this session; repeatable",
        )
        parser.add_argument(
            "--runtime", default="", choices=sorted(runtimes()), metavar="NAME", help="only this runtime"
        )
        parser.add_argument(
            "--concurrency", type=_count, default=0, metavar="N", help="executions to examine at a time"
        )
        parser.add_argument(
            "--timeout", type=_positive, default=0.0, metavar="S", help="seconds to wait for each execution"
        )
        parser.add_argument(
            "--wait",
            nargs="?",
            type=_positive,
            const=WAIT_DEFAULT,
            default=0.0,
            metavar="S",
            help="wait until all starts have finished, or for S seconds (default 300)",
        )
        parser.add_argument(
            "--strict",
            nargs="?",
            choices=("deploy", "all"),
            const="deploy",
            default="",
            help="exit 1 if this deploy broke a session, 3 if starts are unfinished; =all: 4 if broken before",
        )
        parser.add_argument(
            "--since",
            type=_moment,
            metavar="TIME",
            help="when the deploy began, with a time zone (default: when the supervisor started)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Sweep once. Exits with 0; with ``--strict`` also 1, 3 or 4; with 2 if it could not run."""
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
        with progress_bar("sweeping", timed=True, silent=options["json"]) as progress:
            sweep = recovery_pass.run_recovery_pass(scope, options["wait"], options["since"], progress)
            try:
                result, document = asyncio.run(sweep)
            except LockUnusable as error:
                raise CommandError(str(error), returncode=EXIT_COULD_NOT_RUN) from error
        if options["json"]:
            self.stdout.write(json.dumps(document, indent=2))
        else:
            recovery_pass.print_result(document, result, explain=options["explain"])
        if options["strict"]:
            self._judge(document, options["wait"], everything=options["strict"] == "all")

    def _judge(self, document: Mapping[str, Any], wait: float, *, everything: bool) -> None:
        """Print every failure to stderr, and exit with the status of the worst."""
        for line in recovery_pass.strict_failures(document, wait, everything=everything):
            self.stderr.write(line)
        if document["broken"]:
            sys.exit(EXIT_BROKEN)
        if wait and (document["unfinished"] or not document["swept"]):
            sys.exit(EXIT_UNFINISHED)
        if everything and document["broken_before"]:
            sys.exit(EXIT_BROKEN_BEFORE)

    def _check_sessions(self, ids: Collection[uuid.UUID]) -> None:
        """Raise CommandError for an unknown session: examining nothing would look like success."""
        missing = set(ids) - set(TaskSession.objects.filter(id__in=ids).values_list("id", flat=True))
        if missing:
            raise CommandError(f"there is no session {min(missing)}", returncode=EXIT_COULD_NOT_RUN)
