"""Delete a task with its sessions, one session after the other."""

from __future__ import annotations

import logging
from typing import Final

from django.contrib.auth.models import User
from django.db.models import F
from django.db.transaction import atomic
from django.utils import timezone

from executors_app.models import ExecutorRunning
from sessions_app.board.services.tasks import delete_session, lock_to_delete
from sessions_app.finish.models import FinishIntent
from sessions_app.finish.unfinished import TimeLimit, unfinished_work
from sessions_app.kernel.rules.wording import count_text, plural
from sessions_app.kernel.services.errors import Conflict, WorkUnfinished
from sessions_app.models import Intent, Task, TaskSession
from sessions_app.sessions.services.queries import SECRET_FIELDS

MAX_SESSIONS: Final = 50
"""Sessions that one request deletes; of a task with more, the next request deletes more."""
MAX_ROWS: Final = 10_000
"""Messages, or events, that one transaction deletes."""
log = logging.getLogger(__name__)


def delete_task(task: Task, by: User, confirmed: str = "") -> None:
    """Delete a task, its sessions and their portable records. May be repeated.

    ``confirmed`` is the version of the unfinished work (``unfinished_work``) that the user has seen; it is needed if
    there is any. Each session is deleted in a transaction of its own, because others choose how many there are. Raises
    WorkUnfinished, and Conflict: for a task whose sessions may have a live execution or a merge that is carried out,
    for the task of a workflow run, and while more than ``MAX_SESSIONS`` sessions are left.
    """
    _require_deletable(task)
    left = unfinished_work(task, TimeLimit.as_confirmed(confirmed))
    if left.is_something and left.version != confirmed:
        raise WorkUnfinished(version=left.version)
    _keep_from_starting(task)
    deleted = _delete_sessions(task)
    with atomic():
        row = Task.objects.select_for_update().filter(id=task.id).first()
        if row is None:
            return
        remaining = row.sessions.count()
        if remaining:
            raise Conflict(
                f"{count_text(deleted, 'session')} of this task {plural(deleted, 'was', 'were')} deleted, "
                f"{remaining} more {plural(remaining, 'is', 'are')} left. Delete it again for the rest."
            )
        _require_no_run(row)
        row.delete()
    log.info("task %s was deleted by %s", task.id, by.get_username())


def _keep_from_starting(task: Task) -> None:
    """Archive the task, because no session of an archived one starts, unless one has started before.

    Both in one transaction, so that there is nothing to undo on which another deletion of this task relies.
    """
    with atomic():
        Task.objects.filter(id=task.id, archived_at=None).update(archived_at=timezone.now())
        _require_deletable(task)


def _delete_sessions(task: Task) -> int:
    """Delete sessions, those that use the worktree of another one first; return how many."""
    rows = task.sessions.order_by(F("shares_worktree_of").asc(nulls_last=True), "id")
    sessions = list(rows.select_related("task__repository").defer(*SECRET_FIELDS)[:MAX_SESSIONS])
    for session in sessions:
        _shorten(session)
        delete_session(session)
    return len(sessions)


def _shorten(session: TaskSession) -> None:
    """Delete most of a long conversation and its log in small transactions, so that none holds the database for long.

    What remains of the session, and all of a shorter one, is deleted in one.
    """
    for rows in (session.messages, session.events):
        while (end := rows.order_by("seq").values_list("seq", flat=True)[MAX_ROWS : MAX_ROWS + 1].first()) is not None:
            with atomic():
                if not lock_to_delete(session):
                    return
                rows.filter(seq__lt=end).delete()


def _require_deletable(task: Task) -> None:
    _require_no_run(task)
    sessions = task.sessions.all()
    live = ExecutorRunning.objects.filter(session__in=sessions).exclude(status=ExecutorRunning.Status.STOPPED)
    if live.exists() or Intent.objects.filter(session__in=sessions, done_at=None).exists():
        raise Conflict("A session of this task has a live execution. Stop its sessions first.")
    if FinishIntent.objects.pending().filter(session__in=sessions).exists():
        raise Conflict("A merge or push of this task is being carried out. Wait for its end, then try again.")


def _require_no_run(task: Task) -> None:
    if task.workflow_runs.exists():
        raise Conflict("This task belongs to a workflow run, which keeps it. Archive it instead.")
