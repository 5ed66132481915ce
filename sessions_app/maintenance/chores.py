"""Maintenance chores: delete rows and old log lines that nothing references, and run all chores in order."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django.conf import settings
from django.contrib.sessions.models import Session as WebSession
from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone
from django_q.models import Failure, Success

from executors_app.models import Executor, ExecutorRunning
from executors_app.plugins import runtimes
from executors_app.runtimes import SupportsOrphans
from executors_app.wire.errors import ExecutorError
from executors_app.wire.executions import Orphan
from sessions_app.accounts.models import AttemptCount, LoginLink
from sessions_app.kernel.rules.log_event import LogEvent
from sessions_app.kernel.rules.states import OPEN_RUN_STATES, TERMINAL_STATES, PermissionState
from sessions_app.maintenance.chore_run import ChoreRun, cutoff_before
from sessions_app.maintenance.closed_sessions import closed_before
from sessions_app.maintenance.data_sizes import measure_sizes
from sessions_app.maintenance.files import clean_journals, clean_recovery_refs
from sessions_app.maintenance.worktrees import clean_worktrees
from sessions_app.metrics import counters as metric_counters
from sessions_app.metrics import models as metric_counts
from sessions_app.models import (
    AttentionItem,
    Chore,
    Host,
    HostProcess,
    Orphaned,
    PermissionRequest,
    Presence,
    RecoverySweep,
    ReviewComment,
    SessionEvent,
    SweepRequest,
    TaskSession,
    ViewedVersion,
    WaitKey,
)
from sessions_app.notifications.models import Delivery
from sessions_app.portable import record as portable_record
from sessions_app.portable.reader import RecordReader


def clean_logins(work: ChoreRun) -> None:
    """Delete expired login links, browser sessions and attempt counters."""
    now = timezone.now()
    work.remove_rows(LoginLink.objects.filter(expires_at__lt=now))
    work.remove_rows(WebSession.objects.filter(expire_date__lt=now))
    work.remove_rows(AttemptCount.objects.filter(ends_at__lt=now))


def clean_tokens(work: ChoreRun) -> None:
    """Delete keys that were settled long ago and whose run has ended; they remain in the metrics."""
    cutoff = cutoff_before(settings.KANDEV_HISTORY_RETENTION)
    if cutoff is None:
        return
    settled = Q(consumed_at__lt=cutoff) | Q(revoked_at__lt=cutoff) | Q(expired_at__lt=cutoff)
    asked = PermissionRequest.objects.filter(state=PermissionState.PENDING).values("id")
    rows = WaitKey.objects.filter(settled).exclude(run__state__in=OPEN_RUN_STATES).exclude(wait_id__in=asked)
    work.remove_rows(rows, metric_counters.keep_token_counts)


def clean_host_processes(work: ChoreRun) -> None:
    """Delete processes that ended or fell silent long ago, and hosts that then have none and no executor.

    The newest process of a place stays while a session names that place, or people have decided about its host: without
    it, nobody could say which host has no supervisor, or declare it lost.
    """
    cutoff = cutoff_before(settings.KANDEV_HISTORY_RETENTION)
    if cutoff is None:
        return
    work.remove_rows(HostProcess.objects.filter(beat_at__lt=cutoff).exclude(id__in=_processes_to_keep()))
    unused = Host.objects.filter(processes=None, executors=None, maintenance=None)
    work.remove_rows(unused.filter(first_seen_at__lt=cutoff))


def _processes_to_keep() -> list[uuid.UUID]:
    open_ones = ExecutorRunning.objects.exclude(session__state__in=TERMINAL_STATES).exclude(host_id="")
    needed = Q(place__in=open_ones.order_by().values("host_id")) | Q(host__maintenance__isnull=False)
    rows = HostProcess.objects.filter(needed).order_by("beat_at").values_list("host_id", "place", "id")
    return list({(host, place): process_id for host, place, process_id in rows}.values())


def clean_sweeps(work: ChoreRun) -> None:
    """Delete old sweeps with their outcomes, and old requests for sweeps; the newest sweep stays."""
    cutoff = cutoff_before(settings.KANDEV_HISTORY_RETENTION)
    if cutoff is None:
        return
    newest = RecoverySweep.objects.order_by("-started_at").values("id")[:1]
    old = RecoverySweep.objects.filter(started_at__lt=cutoff).exclude(id__in=list(newest.values_list("id", flat=True)))
    work.remove_rows(SweepRequest.objects.filter(done_at__lt=cutoff))
    work.remove_rows(old)


def clean_attention(work: ChoreRun) -> None:
    """Delete attention items that were resolved long ago, and old deliveries of notifications."""
    cutoff = cutoff_before(settings.KANDEV_HISTORY_RETENTION)
    if cutoff is None:
        return
    work.remove_rows(Delivery.objects.filter(finished_at__lt=cutoff))
    work.remove_rows(AttentionItem.objects.filter(resolved_at__lt=cutoff))


def clean_worker_tasks(work: ChoreRun) -> None:
    """Delete records of background jobs that ended long ago."""
    cutoff = cutoff_before(settings.KANDEV_HISTORY_RETENTION)
    if cutoff is None:
        return
    work.remove_rows(Failure.objects.filter(stopped__lt=cutoff))
    work.remove_rows(Success.objects.filter(stopped__lt=cutoff))


VALUES_BATCH: Final = 500
"""Maximum number of rows of a table that one transaction changes."""


def fold_metric_counts(work: ChoreRun) -> None:
    """Merge the parts of metric counters, and store what their rows are counted by; no counter changes its value."""
    if work.dry_run:
        return
    metric_counts.fold_counts()
    while metric_counters.store_values(VALUES_BATCH) and not work.is_over:
        pass


EVENT_BATCH: Final = 500
"""Maximum number of lines compared at once."""


def clean_events(work: ChoreRun) -> None:
    """Delete the log lines of sessions that were closed long ago, all but the last, which identifies the record.

    Messages, prompts and receipts stay, so the session's page still shows what happened.
    """
    cutoff = cutoff_before(settings.KANDEV_EVENT_RETENTION)
    if cutoff is None:
        return
    lines = SessionEvent.objects.filter(session=OuterRef("pk"), seq__lt=OuterRef("last_seq"))
    old = TaskSession.objects.filter(closed_before(cutoff), Exists(lines))
    # In random order: otherwise the sessions that cannot be cleaned would use up the time of every run.
    for session_id in list(old.order_by("?").values_list("id", flat=True)):
        if work.is_over:
            return
        session = TaskSession.objects.filter(id=session_id).first()
        if session is not None:
            _clean_session(work, session)


def _clean_session(work: ChoreRun, session: TaskSession) -> None:
    problem = _missing_proof(session)
    if problem:
        work.kept += 1
        work.note(f"the log of session {session.id} stays: {problem}", session_id=str(session.id))
        return
    work.remove_rows(SessionEvent.objects.filter(session=session, seq__lt=session.last_seq))


def _missing_proof(session: TaskSession) -> str:
    """Return why the portable record does not prove that nothing is lost; empty if it does."""
    reader = RecordReader(portable_record.record_directory(), str(session.id))
    recorded = {line.event.seq: line.event for line in reader.log()}
    if reader.findings:
        found = reader.findings[0]
        return f"line {found.line} of its record is damaged ({found.problem})"
    after = 0
    rows = SessionEvent.objects.filter(session=session).order_by("seq")
    while piece := list(rows.filter(seq__gt=after).values_list("seq", "at", "name", "payload", "once")[:EVENT_BATCH]):
        for row in piece:
            if recorded.get(row[0]) != LogEvent(*row):
                return f"line {row[0]} of its record is missing or differs from the log"
        after = piece[-1][0]
    if after == session.last_seq:
        return ""
    return "the newest lines of its log are missing"


def clean_presences(work: ChoreRun) -> None:
    """Delete rows of users who no longer have a session's page open."""
    work.remove_rows(Presence.objects.filter(expires_at__lt=timezone.now()))


def clean_reviews(work: ChoreRun) -> None:
    """Delete old marks of viewed files, and what belongs to sessions that a release without these tables deleted."""
    sessions = TaskSession.objects.filter(id=OuterRef("session_id"))
    for rows in (ReviewComment.objects.all(), ViewedVersion.objects.all()):
        work.remove_rows(rows.filter(~Exists(sessions)))
    cutoff = cutoff_before(settings.KANDEV_HISTORY_RETENTION)
    if cutoff is not None:
        work.remove_rows(ViewedVersion.objects.filter(viewed_at__lt=cutoff))


ANALYZED_ROWS: Final = 1000
"""Rows of each index that SQLite reads for its statistics."""


def optimize_database(work: ChoreRun) -> None:
    """Truncate the write-ahead log of an embedded database, and update its query statistics."""
    if connection.vendor != "sqlite" or connection.in_atomic_block or work.dry_run:
        return  # SQLite cannot do this within a transaction
    with connection.cursor() as cursor:
        # Statistics of a part of each table are enough for its plans, and take the same time whatever its length.
        cursor.execute(f"PRAGMA analysis_limit = {ANALYZED_ROWS}")
        cursor.execute("PRAGMA optimize")
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")


log = logging.getLogger(__name__)
SEARCH_TIMEOUT: Final = 15.0
"""Seconds for one executor; the executors of a runtime are asked concurrently."""


@dataclass(frozen=True, slots=True)
class OrphanSource:
    """Where orphans are searched: an executor, or a runtime without executors."""

    name: str
    """The executor's name; empty: no executor has this runtime."""
    configs: Sequence[Mapping[str, Any]]
    """Configuration for the runtime; empty for a runtime without executors."""


@dataclass(slots=True)
class OrphanReport:
    """Result of one search of a runtime."""

    found: list[Orphan] = field(default_factory=list)
    sources: dict[str, OrphanSource] = field(default_factory=dict)
    """Where each orphan was found, by its id."""
    silent: dict[str, str] = field(default_factory=dict)
    """Why an executor could not be reached, by its name; for staff."""


def searchable_runtimes() -> dict[str, SupportsOrphans]:
    """Return the runtimes that can list orphans, by name."""
    return {name: place for name, place in runtimes().items() if isinstance(place, SupportsOrphans)}


def sources_of(runtime: str) -> list[OrphanSource]:
    """Return one source for each executor of a runtime; empty if the runtime is not used here."""
    rows = Executor.objects.filter(runtime=runtime).values_list("name", "config")
    return [OrphanSource(name, [config]) for name, config in rows]


def find_orphans(runtime: str, place: SupportsOrphans) -> OrphanReport:
    """Return what exists now and belongs to no row. An unreachable executor hides no orphans of the others.

    A runtime without executors is searched too; if it does not answer, that is not reported.
    """
    rows = ExecutorRunning.objects.values_list("pk", "session_id")
    known = frozenset(str(one) for row in rows for one in row)
    sources = sources_of(runtime) or [OrphanSource("", [])]
    report = OrphanReport()
    for source, answer in zip(sources, asyncio.run(_search_all(place, known, sources)), strict=True):
        if isinstance(answer, str):
            report.silent |= {source.name: answer} if source.name else {}
            continue
        # Two executors may share an engine or host. What was launched during the search has its row by now.
        new = [one for one in answer if one.id not in report.sources and (one.is_helper or not _has_row(one))]
        report.found += new
        report.sources |= {one.id: source for one in new}
    return report


async def _search_all(
    place: SupportsOrphans, known: frozenset[str], sources: Sequence[OrphanSource]
) -> Sequence[list[Orphan] | str]:
    return await asyncio.gather(*(_search(place, known, source) for source in sources))


async def _search(place: SupportsOrphans, known: frozenset[str], source: OrphanSource) -> list[Orphan] | str:
    """Return the orphans of one source, or why it could not be reached."""
    try:
        return await asyncio.wait_for(place.orphans(known, source.configs), SEARCH_TIMEOUT)
    except TimeoutError:
        return f"It did not answer within {SEARCH_TIMEOUT:g} seconds."
    except ExecutorError as error:
        return error.message_for_staff
    except Exception as error:
        log.warning("orphans at %s could not be listed", source.name, exc_info=error)
        return f"Its answer is not valid ({type(error).__name__})."


def _has_row(one: Orphan) -> bool:
    ids = [known for known in (one.execution_id, *one.owner_ids) if _is_id(known)]
    return ExecutorRunning.objects.filter(Q(pk__in=ids) | Q(session_id__in=ids)).exists()


def _is_id(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def report_orphans(work: ChoreRun) -> None:
    """Check every runtime that is used here, and store what was found for the pages."""
    for name, place in searchable_runtimes().items():
        if not sources_of(name):
            if not work.dry_run:
                Orphaned.objects.filter(runtime=name).delete()
            continue
        report = find_orphans(name, place)
        for executor, problem in report.silent.items():
            work.fail(f"{executor} ({name}) could not be reached: {problem}")
        work.kept += len(report.found)
        if not work.dry_run:
            _save_report(name, report)


def _save_report(runtime: str, report: OrphanReport) -> None:
    now = timezone.now()
    with transaction.atomic():
        for one in report.found:
            values = {"execution_id": one.execution_id[:64], "status": one.status[:64], "last_seen_at": now}
            Orphaned.objects.update_or_create(runtime=runtime, name=one.id[:200], defaults=values)
        if not report.silent:  # otherwise a missing orphan may be at an executor that did not answer
            Orphaned.objects.filter(runtime=runtime).exclude(name__in=[one.id[:200] for one in report.found]).delete()


CHORES: Final[Mapping[str, Callable[[ChoreRun], None]]] = {
    "logins": clean_logins,
    "presences": clean_presences,
    "reviews": clean_reviews,
    "keys": clean_tokens,
    "sweeps": clean_sweeps,
    "hosts": clean_host_processes,
    "attention": clean_attention,
    "worker": clean_worker_tasks,
    "journals": clean_journals,
    "worktrees": clean_worktrees,
    "recovery_refs": clean_recovery_refs,
    "events": clean_events,
    "orphans": report_orphans,
    "counts": fold_metric_counts,
    "sizes": measure_sizes,
    "database": optimize_database,
}
"""The chores by name, in the order in which they run."""


Progress = Callable[[int, int, str], None]
"""Called with (finished chores, total number, the one that begins)."""


def run_chores(
    names: Collection[str] = (),
    *,
    dry_run: bool = False,
    progress: Progress = lambda done, total, name: None,
    within: float | None = None,
) -> list[ChoreRun]:
    """Run the named chores, or all, and return the result of each that began. A dry run writes nothing at all.

    ``within``: seconds for all of them together. The chores that began longest ago then come first, so that those for
    which no time was left, or behind one that was killed, are the first of the next run.
    """
    wanted = [name for name in CHORES if not names or name in names]
    deadline = math.inf
    if within is not None:
        deadline = time.monotonic() + within
        wanted = _longest_waiting_first(wanted)
    done: list[ChoreRun] = []
    for name in wanted:
        if time.monotonic() >= deadline:
            left = wanted[len(done) :]
            log.warning("maintenance: no time was left for %s; the next run begins with them", ", ".join(left))
            break
        progress(len(done), len(wanted), name)
        done.append(_run_chore(name, dry_run=dry_run, deadline=deadline))
    progress(len(done), len(wanted), "")
    return done


def _longest_waiting_first(names: Collection[str]) -> list[str]:
    begun = Chore.objects.filter(started_at__isnull=False).order_by("started_at").values_list("name", flat=True)
    place = {name: number for number, name in enumerate(begun, start=1)}
    return sorted(names, key=lambda name: place.get(name, 0))


def _run_chore(name: str, *, dry_run: bool, deadline: float) -> ChoreRun:
    """Run one chore for at most ``TIME_BUDGET``, and no longer than until ``deadline`` (``time.monotonic``)."""
    work = ChoreRun(name, dry_run=dry_run)
    work.deadline = min(work.deadline, deadline)
    if not dry_run:
        Chore.objects.update_or_create(name=name, defaults={"started_at": timezone.now()})
    try:
        CHORES[name](work)
    except Exception as error:  # noqa: BLE001  (one chore never stops the others)
        work.fail(f"{type(error).__name__}: {error}", error)
    if not dry_run:
        _save_result(work)
    return work


def _save_result(work: ChoreRun) -> None:
    now = timezone.now()
    values: dict[str, Any] = {"ended_at": now, "removed": work.removed, "kept": work.kept, "said": work.said}
    values |= {"failed_at": now} if work.failed else {"failed_at": None, "succeeded_at": now}
    Chore.objects.filter(name=work.chore).update(**values)
