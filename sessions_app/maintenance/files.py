"""Delete files and recovery refs of executions that are over or whose session was deleted."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from django.conf import settings
from django.db import connection
from django.db.transaction import atomic

from executors_app import cleanup
from executors_app.models import ExecutorRunning
from executors_app.wire.errors import RepositoryUnusable
from executors_app.wire.executions import ExecutorStatus
from sessions_app.maintenance.chore_run import ChoreRun, cutoff_before
from sessions_app.maintenance.closed_sessions import CLOSED_STATES, closed_before, lock_if_closed
from sessions_app.models import Leftover, Repository, TaskSession


def note_leftover(session: TaskSession) -> None:
    """Record what a session leaves behind, in the transaction that deletes it."""
    repository = session.task.repository
    Leftover.objects.update_or_create(
        session_id=session.id,
        defaults={
            "executions": [str(key) for key in session.executions.values_list("id", flat=True)],
            "repository_path": repository.path if repository else "",
        },
    )


def leftovers_of_deleted() -> Iterator[Leftover]:
    """Yield the leftovers of deleted sessions, and forget those of sessions that were imported again."""
    rows = list(Leftover.objects.all())
    back = set(TaskSession.objects.filter(id__in=[row.session_id for row in rows]).values_list("id", flat=True))
    Leftover.objects.filter(session_id__in=back).delete()
    return (row for row in rows if row.session_id not in back)


def leftover_of(session_id: uuid.UUID) -> Leftover | None:
    """Return what a deleted session has left; None if the session exists, or was never deleted."""
    if TaskSession.objects.filter(id=session_id).exists():
        return None
    return Leftover.objects.filter(session_id=session_id).first()


def settle_leftover(row: Leftover, **done: bool) -> None:
    """Record that a part was removed; with the last part, delete the row."""
    Leftover.objects.filter(session_id=row.session_id).update(**done)
    Leftover.objects.filter(session_id=row.session_id, files_gone=True, refs_gone=True).delete()


OTHER_HOSTS_GRACE: Final = timedelta(days=90)
"""How long each of several machines that share a database can still remove its part."""


def clean_journals(work: ChoreRun) -> None:
    """Delete agentctl's directories of closed sessions whose journal is in the log, and of deleted sessions.

    Of a session whose task is done, cancelled or archived, only the journal is deleted: people can reopen the task,
    and the session then continues. A directory that belongs to no row stays: a restored database may lack a session
    that is alive.
    """
    if not work.dry_run:
        for execution_id, epoch in cleanup.journals_set_aside().items():
            _forget_journal(execution_id, epoch)
        cleanup.finish_removals()
    cutoff = cutoff_before(settings.KANDEV_JOURNAL_RETENTION)
    if cutoff is None:
        return
    living = cleanup.find_living_executions()
    deleted = {key: row for row in leftovers_of_deleted() if not row.files_gone for key in row.executions}
    for execution_id in cleanup.list_state_directories():
        if work.is_over:
            return
        row = deleted.get(execution_id)
        if row is not None:
            if row.deleted_at < cutoff:
                _remove(work, execution_id, living, partial(cleanup.remove_state, execution_id))
            continue
        _clean_state_of_closed(work, execution_id, living, cutoff)
    _clean_deleted(work, cutoff)


def _remove(work: ChoreRun, execution_id: str, living: frozenset[str], remove: Callable[[], bool]) -> None:
    if not cleanup.is_idle(execution_id, living):
        work.kept += 1
        work.note(f"execution {execution_id} has ended, but a process still runs", execution_id=execution_id)
        return
    work.act(f"the journal of execution {execution_id}", remove, execution_id=execution_id)


def _clean_state_of_closed(work: ChoreRun, execution_id: str, living: frozenset[str], cutoff: datetime) -> None:
    """Delete what a stopped execution of a closed session no longer needs, if its whole journal is in the log."""
    stopped = ExecutorRunning.objects.filter(id=execution_id, status=ExecutorStatus.STOPPED, updated_at__lt=cutoff)
    execution = stopped.filter(session__in=TaskSession.objects.filter(closed_before(cutoff))).first()
    if execution is None or not cleanup.is_journal_read(execution_id, execution.journal_epoch, execution.journal_seq):
        return
    if execution.session.state in CLOSED_STATES:
        _remove(work, execution_id, living, partial(cleanup.remove_state, execution_id))
    elif cleanup.has_journal(execution_id, execution.journal_epoch):
        _remove(work, execution_id, living, partial(_remove_journal, execution, cutoff))


def _remove_journal(execution: ExecutorRunning, cutoff: datetime) -> bool:
    """Delete the journal of a session that can continue; return False if its task was reopened meanwhile.

    The session is locked while the journal is renamed, so that no agentctl starts with it.
    """
    with atomic():
        if not lock_if_closed(execution.session_id, cutoff):
            return False
        going = cleanup.set_journal_aside(str(execution.id))
        _forget_journal(str(execution.id), execution.journal_epoch)
    if going is not None:
        cleanup.remove_set_aside(going)
    return going is not None


def _forget_journal(execution_id: str, epoch: str) -> None:
    """Let the next journal be no continuation of one that was read to its end: nothing is missing in between."""
    ExecutorRunning.objects.filter(id=execution_id, journal_epoch=epoch).update(journal_epoch="", journal_seq=0)


def _clean_deleted(work: ChoreRun, cutoff: datetime) -> None:
    """Delete the homes of deleted sessions, and settle leftovers whose files are all gone."""
    here = set(cleanup.list_state_directories())
    for row in leftovers_of_deleted():
        if row.files_gone or row.deleted_at >= cutoff:
            continue
        session_id = str(row.session_id)
        if cleanup.has_home(session_id):
            what = f"the home of deleted session {session_id}"
            work.act(what, partial(cleanup.remove_home, session_id), session_id=session_id)
        nothing_here = not here.intersection(row.executions) and not cleanup.has_home(session_id)
        if not work.dry_run and nothing_here and (is_only_host() or row.deleted_at < cutoff - OTHER_HOSTS_GRACE):
            settle_leftover(row, files_gone=True)


def is_only_host() -> bool:
    """Return whether no other machine can have files of a session, because the database is embedded."""
    return connection.vendor == "sqlite"


def clean_recovery_refs(work: ChoreRun) -> None:
    """Delete recovery refs of closed and deleted sessions after ``KANDEV_RECOVERY_RETENTION``."""
    cutoff = cutoff_before(settings.KANDEV_RECOVERY_RETENTION)
    if cutoff is None:
        return
    living = cleanup.find_living_executions()
    for row in leftovers_of_deleted():
        if not work.is_over and not row.refs_gone and row.deleted_at < cutoff and _has_ended(work, row, living):
            _clean_refs_of_deleted(work, row, cutoff)
    for repository, session in _closed_sessions(work, cutoff):
        if work.is_over:
            return
        _clean_refs_of_closed(work, repository, session)


def _has_ended(work: ChoreRun, row: Leftover, living: frozenset[str]) -> bool:
    """Return whether no process of a deleted session runs on this machine; one that does uses its workspace."""
    alive = [one for one in row.executions if not cleanup.is_idle(one, living)]
    if alive:
        work.kept += 1
        work.note(f"execution {alive[0]} of a deleted session is still running", execution_id=alive[0])
    return not alive


def _clean_refs_of_deleted(work: ChoreRun, row: Leftover, cutoff: datetime) -> None:
    session_id, repository = str(row.session_id), Path(row.repository_path)
    if cleanup.has_archive(session_id):
        what = f"the archive of deleted session {session_id}"
        work.act(what, partial(cleanup.remove_archive, session_id), session_id=session_id)
    if cleanup.has_workspace(session_id):
        what = f"the workspace of deleted session {session_id}"
        work.act(what, partial(cleanup.remove_workspace, session_id), session_id=session_id)
    if row.repository_path and not repository.is_dir():
        work.kept += 1
        work.note(f"the repository of deleted session {session_id} is not here", session_id=session_id)
        return
    try:
        refs = cleanup.session_refs(repository, session_id) if row.repository_path else []
    except RepositoryUnusable as error:
        work.fail(f"the refs of deleted session {session_id} cannot be read: {error.message}", session_id=session_id)
        return
    before = work.failed
    for ref in refs:
        work.act(ref[0], partial(cleanup.drop_refs, repository, session_id, [ref]), session_id=session_id)
    nowhere_else = is_only_host() or row.deleted_at < cutoff - OTHER_HOSTS_GRACE
    left = cleanup.has_archive(session_id) or cleanup.has_workspace(session_id) or _has_removable_worktree(session_id)
    if not work.dry_run and work.failed == before and nowhere_else and not left:
        settle_leftover(row, refs_gone=True)


def _has_removable_worktree(session_id: str) -> bool:
    """Whether the row is still needed as the proof that the session of a worktree was deleted."""
    return bool(settings.KANDEV_WORKTREE_RETENTION) and cleanup.has_worktree(session_id)


def _closed_sessions(work: ChoreRun, cutoff: datetime) -> Iterator[tuple[Path, TaskSession]]:
    """Yield closed sessions of which a repository on this machine has a snapshot."""
    # In random order: otherwise the snapshots that must stay would use up the time of every run.
    for row in Repository.objects.order_by("?"):
        repository = Path(row.path)
        if not repository.is_dir():
            continue
        try:
            kept = [one for one in map(_uuid_or_none, cleanup.sessions_with_snapshots(repository)) if one]
        except RepositoryUnusable as error:
            work.fail(f"the refs of {repository} cannot be read: {error.message}")
            continue
        closed = TaskSession.objects.filter(closed_before(cutoff), task__repository=row)
        for start in range(0, len(kept), 500):
            yield from ((repository, one) for one in closed.filter(id__in=kept[start : start + 500]).order_by("?"))


def _clean_refs_of_closed(work: ChoreRun, repository: Path, session: TaskSession) -> None:
    session_id = str(session.id)
    try:
        ref = cleanup.find_redundant_snapshot(repository, session_id, session.worktree_branch)
        turns = cleanup.find_kept_turns(repository, session_id) if ref is not None else None
    except RepositoryUnusable as error:
        work.fail(f"the snapshot of session {session_id} cannot be compared: {error.message}", session_id=session_id)
        return
    if ref is None:
        work.kept += 1
        return
    # The turns of a closed session go with its last snapshot, and before it: this one finds the session again.
    for each in filter(None, (turns, ref)):
        work.act(each[0], partial(cleanup.drop_refs, repository, session_id, [each]), session_id=session_id)


def _uuid_or_none(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
