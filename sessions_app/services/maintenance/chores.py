"""Maintenance chores: delete rows and old log lines that nothing references, and run all chores in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from django.conf import settings
from django.contrib.sessions.models import Session as WebSession
from django.db import connection
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone
from django_q.models import Failure, Success

from sessions_app.accounts.models import AttemptCount, LoginLink
from sessions_app.domain.portable.lines import LogEvent
from sessions_app.domain.states import OPEN_RUN_STATES, PermissionState
from sessions_app.models import (
    AttentionItem,
    Chore,
    PermissionRequest,
    Presence,
    RecoverySweep,
    ResumeToken,
    SessionEvent,
    SweepRequest,
    TaskSession,
    operations,
)
from sessions_app.notifications.models import Delivery
from sessions_app.services import metric_counters
from sessions_app.services.maintenance.chore_run import ChoreRun, cutoff_before
from sessions_app.services.maintenance.files import CLOSED_STATES, clean_journals, clean_recovery_refs
from sessions_app.services.maintenance.orphans import report_orphans
from sessions_app.services.portable import record as portable_record
from sessions_app.services.portable.reading import RecordReader


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
    rows = ResumeToken.objects.filter(settled).exclude(run__state__in=OPEN_RUN_STATES).exclude(wait_id__in=asked)
    work.remove_rows(rows, metric_counters.keep_token_counts)


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
    """Delete records of worker tasks that ended long ago."""
    cutoff = cutoff_before(settings.KANDEV_HISTORY_RETENTION)
    if cutoff is None:
        return
    work.remove_rows(Failure.objects.filter(stopped__lt=cutoff))
    work.remove_rows(Success.objects.filter(stopped__lt=cutoff))


def fold_metric_counts(work: ChoreRun) -> None:
    """Merge the parts of metric counters; no counter changes its value."""
    if not work.dry_run:
        operations.fold_counts()


EVENT_BATCH: Final = 500
"""Most lines compared at once."""


def clean_events(work: ChoreRun) -> None:
    """Delete the log lines of sessions that were closed long ago, all but the last, which identifies the record.

    Messages, prompts and receipts stay, so the session's page still shows what happened.
    """
    cutoff = cutoff_before(settings.KANDEV_EVENT_RETENTION)
    if cutoff is None:
        return
    lines = SessionEvent.objects.filter(session=OuterRef("pk"), seq__lt=OuterRef("last_seq"))
    old = TaskSession.objects.filter(Exists(lines), state__in=CLOSED_STATES, updated_at__lt=cutoff)
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
                return f"its record has not line {row[0]} as it is"
        after = piece[-1][0]
    return "" if after == session.last_seq else "its log has no end"


Progress = Callable[[int, int, str], None]
"""Called with (chores done, chores in all, the one that begins)."""


def clean_presences(work: ChoreRun) -> None:
    """Delete rows of users who no longer have a session's page open."""
    work.remove_rows(Presence.objects.filter(expires_at__lt=timezone.now()))


ANALYZED_ROWS: Final = 1000
"""Rows of each index that SQLite reads for its statistics."""


def optimize_database(work: ChoreRun) -> None:
    """Truncate the write-ahead log of an embedded database, and update its query statistics."""
    if connection.vendor != "sqlite" or connection.in_atomic_block or work.dry_run:
        return  # SQLite cannot do this within a transaction
    with connection.cursor() as cursor:
        # Statistics of a part of each table are enough for its plans, and take the same time however long it is.
        cursor.execute(f"PRAGMA analysis_limit = {ANALYZED_ROWS}")
        cursor.execute("PRAGMA optimize")
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")


CHORES: Final[Mapping[str, Callable[[ChoreRun], None]]] = {
    "logins": clean_logins,
    "presences": clean_presences,
    "keys": clean_tokens,
    "sweeps": clean_sweeps,
    "attention": clean_attention,
    "worker": clean_worker_tasks,
    "journals": clean_journals,
    "recovery_refs": clean_recovery_refs,
    "events": clean_events,
    "orphans": report_orphans,
    "counts": fold_metric_counts,
    "database": optimize_database,
}
"""The chores by name, in the order in which they run."""


def run_chores(
    names: Collection[str] = (), *, dry_run: bool = False, progress: Progress = lambda done, total, name: None
) -> list[ChoreRun]:
    """Run the named chores, or all, and return the result of each. A dry run writes nothing at all."""
    wanted = [name for name in CHORES if not names or name in names]
    done = []
    for number, name in enumerate(wanted):
        progress(number, len(wanted), name)
        done.append(_run_chore(name, dry_run=dry_run))
    progress(len(wanted), len(wanted), "")
    return done


def _run_chore(name: str, *, dry_run: bool) -> ChoreRun:
    work = ChoreRun(name, dry_run=dry_run)
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
