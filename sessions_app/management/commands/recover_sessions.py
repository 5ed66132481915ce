"""``manage.py recover_sessions``: one sweep, for deploy hooks and administrators.

It sweeps once, compares the result with the time before a deploy, and prints it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from rich.markup import escape
from rich.table import Table

from executors_app.machine.process import identity
from executors_app.plugins import runtimes
from sessions_app.hosts.supervision import bound_executions, unattended_hosts
from sessions_app.kernel.events.session import StateChanged
from sessions_app.kernel.rules.states import ENDED_STATES, DesiredState, SessionState, TaskState
from sessions_app.kernel.rules.wording import plural
from sessions_app.management.console import VisibleConsole
from sessions_app.management.output import VisibleCommand
from sessions_app.management.startup import EXIT_COULD_NOT_RUN, check_database, progress_bar
from sessions_app.models import Intent, SessionEvent, Supervisor, SweepOutcome, TaskSession
from sessions_app.recovery.rules.recovery import SKIPPED, UNDER_WAY, explain_decision
from sessions_app.recovery.services.assessment import DAMAGED_ROW
from sessions_app.recovery.sweep.sweep_pass import ProgressCallback, SweepRun, SweepScope, build_report
from sessions_app.starts.jobs import start_queued_sessions
from sessions_app.supervisor import leases
from sessions_app.supervisor.leases import LockUnusable, SupervisorLock
from sessions_app.supervisor.loop import SupervisorLoop

WAIT_DEFAULT = 300.0
EXIT_BROKEN: Final = 1
"""Exit status with ``--strict``: this deploy broke a session."""
EXIT_UNFINISHED: Final = 3
"""Nothing is broken, but starts or the supervisor's first sweep were unfinished at the end of ``--wait``."""
EXIT_BROKEN_BEFORE: Final = 4
"""With ``--strict=all``: what is broken was broken before."""
EXIT_UNATTENDED: Final = 5
"""Nothing else is wrong, but a host with agents has no supervisor."""
_SEVERITY: Final[Mapping[str, int]] = {SessionState.ERROR: 1, SessionState.FAILED: 2}
"""Severity of a state. ERROR may be retried; FAILED is final. Every other state has 0."""
POLL_EVERY = 0.1
"""Seconds between two checks of starts that another supervisor carries out."""
DEFAULT_WIDTH = 200
"""Characters of a line if the output is not a terminal."""
COLUMNS = ("task", "session", "runtime", "observed", "decision", "receipt", "reason")


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
            help="exit 1 if this deploy broke a session, 3 if starts are unfinished, 5 if a host with agents has no "
            "supervisor; =all: 4 if broken before",
        )
        parser.add_argument(
            "--since",
            type=_moment,
            metavar="TIME",
            help="when the deploy began, with a time zone (default: when the supervisor started)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Sweep once. Exits with 0; with ``--strict`` also 1, 3, 4 or 5; with 2 if it could not run."""
        check_database(may_write=not options["dry_run"])
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
            sweep = run_recovery_pass(scope, options["wait"], options["since"], progress)
            try:
                result, document = asyncio.run(sweep)
            except LockUnusable as error:
                raise CommandError(str(error), returncode=EXIT_COULD_NOT_RUN) from error
        if options["json"]:
            self.stdout.write(json.dumps(document, indent=2))
        else:
            print_result(document, result, explain=options["explain"])
        if options["strict"]:
            self._judge(document, options["wait"], everything=options["strict"] == "all")

    def _judge(self, document: Mapping[str, Any], wait: float, *, everything: bool) -> None:
        """Print every failure to stderr, and exit with the status of the worst."""
        for line in strict_failures(document, wait, everything=everything):
            self.stderr.write(line)
        if document["broken"]:
            sys.exit(EXIT_BROKEN)
        if wait and (document["unfinished"] or not document["swept"]):
            sys.exit(EXIT_UNFINISHED)
        if everything and document["broken_before"]:
            sys.exit(EXIT_BROKEN_BEFORE)
        if document["unattended_hosts"]:
            sys.exit(EXIT_UNATTENDED)

    def _check_sessions(self, ids: Collection[uuid.UUID]) -> None:
        """Raise CommandError for an unknown session: examining nothing would look like success."""
        missing = set(ids) - set(TaskSession.objects.filter(id__in=ids).values_list("id", flat=True))
        if missing:
            raise CommandError(f"there is no session {min(missing)}", returncode=EXIT_COULD_NOT_RUN)


def live_supervisors() -> list[Supervisor]:
    """Return the supervisors that are alive: those of this machine first, then the newest first.

    The heartbeat of a killed supervisor stays fresh for a while, so one whose process is known to be gone is left out.
    """
    alive = [row for row in Supervisor.objects.alive().order_by("-started_at") if not leases.is_owner_dead(row.boot_id)]
    return sorted(alive, key=lambda row: row.host_id != identity.host_id())


def broken_since_deploy(began: datetime, result: SweepRun) -> list[tuple[str, str, bool]]:
    """Return the sessions in the scope of ``result`` that should be running and are in ERROR, FAILED or damaged.

    Each with what is wrong, and whether it was in a better state when the deploy ``began``. The states before it come
    from the log and from earlier sweeps.
    """
    damaged = {one.session_id: one.flaws for one in result.damaged}
    rows = [row for row in _in_trouble(result.scope).filter(created_at__lt=began) if row.id not in damaged]
    before = _levels_before([row.id for row in rows], began)
    known = _corrupt_before(damaged, began)
    broken = []
    for row in rows:
        level = _SEVERITY[row.state]
        broken.append((str(row.id), f"is in {row.state}: {row.error_message}", before.get(row.id, level) < level))
    return broken + [(str(key), f"is in {DAMAGED_ROW}: {flaws}", key not in known) for key, flaws in damaged.items()]


def _in_trouble(scope: SweepScope) -> QuerySet[TaskSession]:
    rows = TaskSession.objects.filter(state__in=_SEVERITY, desired_state=DesiredState.RUNNING, task__archived_at=None)
    rows = rows.exclude(task__state__in=(TaskState.DONE, TaskState.CANCELLED))
    if scope.sessions:
        rows = rows.filter(id__in=scope.sessions)
    if scope.runtime:
        rows = rows.filter(executor__runtime=scope.runtime)
    return rows.order_by("id").only("state", "error_message")


def _levels_before(sessions: Collection[uuid.UUID], began: datetime) -> dict[uuid.UUID, int]:
    """Return the severity of each session's state at ``began``, without those whose state has not changed since."""
    changes = SessionEvent.objects.filter(session_id__in=sessions, name=StateChanged.name, at__gte=began)
    levels: dict[uuid.UUID, int] = {}
    for session_id, payload in changes.order_by("seq").values_list("session_id", "payload"):
        levels.setdefault(session_id, _SEVERITY.get(payload.get("from", ""), 0))
    return levels


def _corrupt_before(sessions: Collection[uuid.UUID], began: datetime) -> set[uuid.UUID]:
    """Return the sessions that the last sweep before ``began`` already skipped as damaged."""
    outcomes = SweepOutcome.objects.filter(session_id__in=sessions, sweep__started_at__lt=began)
    newest = dict(outcomes.order_by("sweep__started_at").values_list("session_id", "rule"))
    return {session_id for session_id, rule in newest.items() if rule == DAMAGED_ROW}


async def run_recovery_pass(
    scope: SweepScope, wait: float, since: datetime | None, progress: ProgressCallback
) -> tuple[SweepRun, dict[str, Any]]:
    """Sweep once; return the result and its JSON document.

    If ``wait`` is not 0, return when all starts have finished, whichever process carried them out, or after that many
    seconds. ``since`` is when the deploy began; None: with the live supervisor, or else with this command.
    """
    deadline, began = time.monotonic() + wait, timezone.now()
    with SupervisorLock("sweep") as lock:
        alone = await _take_lock(lock)
        supervisor = SupervisorLoop()
        registry = supervisor.registry
        try:
            others = await registry.database(live_supervisors)  # before our own row is added
            began = since or (others[0].started_at if others else began)
            waits = bool(wait) and not scope.dry_run
            swept = await _first_sweep(supervisor, deadline, alone=alone) if waits else True
            if alone and not scope.dry_run:
                await supervisor.open()
            result = await _sweep_once(supervisor, scope, alone=alone, progress=progress)
            if waits:
                await _wait_for_starts(supervisor, result, deadline, alone=alone)
                await registry.drain_starts()
            document = await registry.database(_build_document, result, registry.boot_id, began)
        finally:
            await supervisor.close()
    supervised_by = [row.boot_id for row in others]
    return result, {**document, "supervised_by": supervised_by, "swept": swept, "waited": wait}


def _build_document(result: SweepRun, boot_id: str, began: datetime) -> dict[str, Any]:
    """Return the sweep's report with what a deploy needs to know: broken sessions and unfinished starts."""
    broken = broken_since_deploy(began, result)
    ids = [item.row.stored.session_id for item in result.decided]
    return {
        **build_report(result, boot_id),
        "since": began.isoformat(),
        "broken": [key for key, _, by_deploy in broken if by_deploy],
        "broken_before": [key for key, _, by_deploy in broken if not by_deploy],
        "broken_why": {key: why for key, why, _ in broken},
        "unfinished": [] if result.scope.dry_run else sorted(map(str, _unfinished(ids))),
        "unattended_hosts": [
            {"name": name, "sessions": sessions} for name, sessions in _unattended_hosts(result.scope).items()
        ],
    }


def _unattended_hosts(scope: SweepScope) -> Mapping[str, int]:
    """Return the hosts with live agents in the scope and without a supervisor, and the number of these agents.

    This host is left out: this command carries out what it decides here, or a supervisor does.
    """
    rows = bound_executions()
    if scope.sessions:
        rows = rows.filter(session__in=scope.sessions)
    if scope.runtime:
        rows = rows.filter(runtime=scope.runtime)
    return unattended_hosts(rows, besides=identity.host_id())


async def _first_sweep(supervisor: SupervisorLoop, deadline: float, *, alone: bool) -> bool:
    """Wait until each live supervisor has swept once, and so has decided about its sessions."""
    while True:
        others = await supervisor.registry.database(live_supervisors)
        # Not alone means that someone holds the lock. Without a live supervisor, that one is still starting.
        if all(row.swept_at for row in others) and (alone or others):
            return True
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(POLL_EVERY)


async def _sweep_once(
    supervisor: SupervisorLoop, scope: SweepScope, *, alone: bool, progress: ProgressCallback
) -> SweepRun:
    """Sweep; while a supervisor is using this database, it decides and acts, and this pass only observes."""
    if alone:
        return await supervisor.sweep(scope, progress=progress)
    result = await supervisor.sweep(replace(scope, dry_run=True), progress=progress)
    result.scope = scope  # the report describes what the supervisor does
    return result


async def _take_lock(lock: SupervisorLock) -> bool:
    """Take the lock of an embedded database: wait for another sweep, but not for a running supervisor."""
    deadline = time.monotonic() + settings.KANDEV_LEASE_TTL
    while not lock.take():
        if lock.held_by() in ("supervise", "run") or time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_EVERY)
    return True


async def _wait_for_starts(supervisor: SupervisorLoop, result: SweepRun, deadline: float, *, alone: bool) -> None:
    ids = [item.row.stored.session_id for item in result.decided]
    while time.monotonic() < deadline:
        if alone:
            for session_id in ids:
                supervisor.dispatcher.wake(session_id)
            await _settle_starts(supervisor, deadline)
            await _admit_waiting(supervisor, result)
        if not await supervisor.registry.database(_open_starts if alone else _unfinished, ids):
            return
        await asyncio.sleep(POLL_EVERY)


async def _admit_waiting(supervisor: SupervisorLoop, result: SweepRun) -> None:
    """Start sessions that can start now, and replace their *waiting* with the new decision in the result."""
    later = await start_queued_sessions(supervisor)
    again = {item.facts.session_id: item for item in later.decided} if later else {}
    result.decided = [again.get(item.facts.session_id, item) for item in result.decided]
    result.outcomes.update(later.outcomes if later else {})


async def _settle_starts(supervisor: SupervisorLoop, deadline: float) -> None:
    try:
        async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
            await supervisor.dispatcher.wait_until_idle()
    except TimeoutError:
        pass


def _open_starts(ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Return the sessions with unfinished intents, and those that are queued for a start."""
    waits = TaskSession.objects.filter(id__in=ids, start_rank__isnull=False).values_list("id", flat=True)
    orders = Intent.objects.filter(session_id__in=ids, done_at=None).values_list("session_id", flat=True)
    return {*orders, *waits}


def _restarts_to_come(ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Return the sessions whose agent has died and will be restarted later by a supervisor.

    Sessions in ERROR have failed to start, and are reported as broken instead.
    """
    rows = TaskSession.objects.filter(id__in=ids, next_restart_at__isnull=False, desired_state=DesiredState.RUNNING)
    rows = rows.filter(task__archived_at=None).exclude(state__in=(SessionState.ERROR, *ENDED_STATES))
    return set(rows.values_list("id", flat=True))


def _unfinished(ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    return _open_starts(ids) | _restarts_to_come(ids)


def print_result(document: Mapping[str, Any], result: SweepRun, *, explain: bool) -> None:
    """Print the table, the explanations if requested, and the summary."""
    console = VisibleConsole(width=None if sys.stdout.isatty() else DEFAULT_WIDTH)
    if document["sessions"]:
        table = Table(*COLUMNS, box=None, header_style="bold", pad_edge=False)
        for row in document["sessions"]:
            table.add_row(*(escape(cell) for cell in _cells(row)))
        console.print(table)
    for item in result.decided if explain else ():
        console.print(f"\n[bold]session {item.facts.session_id}[/bold]", highlight=False)
        for label, value in explain_decision(item.facts, item.seen, item.decision):
            console.print(f"  {label:<16} {escape(str(value))}", highlight=False)
    console.print(summary_line(document), highlight=False)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    decision = row["by_supervisor"] or row
    rule = decision["rule"].replace("_", " ")
    if row["owner"] and not row["by_supervisor"]:
        rule = f"held by supervisor {row['owner'][:8]}"
    if row["owner"] and decision is row:
        reason = ""
    else:
        reason = decision["error_message"] or decision["reason"]
    return (
        row["task_title"][:40],
        row["session_id"][:8],
        row["runtime"],
        decision["observed"],
        f"{row['session_state']}, {rule}",
        row["receipt_kind"] or "–",
        str(reason)[:120],
    )


def summary_line(document: Mapping[str, Any]) -> str:
    """Return one line: what was examined, the results, and which supervisor carries out the rest."""
    counts = dict(document["outcomes"])
    under_way = sum(row["result"] == UNDER_WAY for row in document["sessions"])
    counts[SKIPPED] -= under_way
    results = ", ".join(f"{count} {kind}" for kind, count in {**counts, "starting": under_way}.items() if count)
    dry_run = bool(document["dry_run"])
    mode = " (dry run: nothing was written)" if dry_run else ""
    would = "would be " if dry_run and results else ""
    parts = [
        f"{document['examined']} examined in {document['duration_ms']} ms: {would}{results or 'nothing to do'}{mode}.",
        _describe_actors(document),
        _describe_waiting(document),
    ]
    return " ".join(filter(None, parts))


def _describe_actors(document: Mapping[str, Any]) -> str:
    running = sorted(one[:8] for one in document["supervised_by"])
    if running:
        verb, whose = ("is", "it does") if len(running) == 1 else ("are", "they do")
        return f"Supervisor {', '.join(running)} {verb} running: {whose} the work, this is its report."
    owners = sorted({row["owner"][:8] for row in document["sessions"] if row["owner"]})
    if owners:
        return f"Held by supervisor {', '.join(owners)}."
    return ""


def _describe_waiting(document: Mapping[str, Any]) -> str:
    count = len(document["unfinished"])
    if not count or document["supervised_by"]:
        return ""
    starts = plural(count, "1 start waits", "{} starts wait")
    here = "" if document["waited"] else ", or add --wait"
    return f"{starts} for a supervisor: run manage.py serve or supervise{here}."


def strict_failures(document: Mapping[str, Any], wait: float, *, everything: bool) -> list[str]:
    """Return the failures for ``--strict``, one line each."""
    kinds = [("broken", "broken by this deploy"), *([("broken_before", "broken before")] if everything else [])]
    lines = [f"{label}: session {key} {document['broken_why'][key]}" for name, label in kinds for key in document[name]]
    count = len(document["unfinished"])
    if wait and count:
        lines.append(f"{count} start{'s' if count > 1 else ''} had not finished after {wait:g} s")
    if wait and not document["swept"]:
        lines.append(f"the supervisor had not finished its first sweep after {wait:g} s")
    for host in document["unattended_hosts"]:
        agents = plural(host["sessions"], "1 agent", "{} agents")
        lines.append(f"no supervisor: host {host['name']} has {agents}; start manage.py supervise there")
    return lines
