"""Journals and homes of executions that are over, on this machine's disk."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Final

from django.conf import settings
from django.db import connection

from executors_app import left_files
from executors_app.domain import ExecutorStatus
from executors_app.models import ExecutorRunning
from sessions_app.domain.states import SessionState
from sessions_app.services.maintenance import leftovers
from sessions_app.services.maintenance.work import Work, before_now

CLOSED: Final = (SessionState.COMPLETED, SessionState.CANCELLED)
"""States that nothing leads out of."""
ELSEWHERE: Final = timedelta(days=90)
"""Where several machines share a database: so long each of them can still remove what it has."""


def journals(work: Work) -> None:
    """Directories of agentctl of closed sessions whose journal is in the log, and of deleted sessions.

    One that belongs to no row stays: a database that was restored may lack a session that lives.
    """
    if not work.dry_run:
        left_files.finish()
    cutoff = before_now(settings.KANDEV_JOURNAL_RETENTION)
    if cutoff is None:
        return
    living = left_files.living()
    deleted = {key: row for row in leftovers.of_deleted() if not row.files_gone for key in row.executions}
    for execution_id in left_files.state_directories():
        if work.is_over:
            return
        row = deleted.get(execution_id)
        if row.deleted_at < cutoff if row is not None else _is_over(execution_id, cutoff):
            _remove(work, execution_id, living)
    _finish_deleted(work, cutoff)


def _remove(work: Work, execution_id: str, living: frozenset[str]) -> None:
    if not left_files.is_idle(execution_id, living):
        work.kept += 1
        work.note(f"execution {execution_id} is over, but something of it lives", execution_id=execution_id)
        return
    what = f"the journal of execution {execution_id}"
    work.act(what, partial(left_files.remove_state, execution_id), execution_id=execution_id)


def _is_over(execution_id: str, cutoff: datetime) -> bool:
    """Its session is closed for good since then, it was stopped, and its whole journal is in the log."""
    row = (
        ExecutorRunning.objects.filter(id=execution_id, status=ExecutorStatus.STOPPED, updated_at__lt=cutoff)
        .filter(session__state__in=CLOSED, session__updated_at__lt=cutoff)
        .values_list("journal_epoch", "journal_seq")
        .first()
    )
    return row is not None and left_files.is_read(execution_id, *row)


def _finish_deleted(work: Work, cutoff: datetime) -> None:
    """Homes of deleted sessions, whose files are all gone then."""
    here = set(left_files.state_directories())
    for row in leftovers.of_deleted():
        if row.files_gone or row.deleted_at >= cutoff:
            continue
        session_id = str(row.session_id)
        if left_files.has_home(session_id):
            what = f"the home of deleted session {session_id}"
            work.act(what, partial(left_files.remove_home, session_id), session_id=session_id)
        nothing_here = not here.intersection(row.executions) and not left_files.has_home(session_id)
        if not work.dry_run and nothing_here and (is_only_host() or row.deleted_at < cutoff - ELSEWHERE):
            leftovers.settle(row, files_gone=True)


def is_only_host() -> bool:
    """Whether no other machine can have files of a session: an embedded database is used by one alone."""
    return connection.vendor == "sqlite"
