"""Delete a task with its sessions, one session after the other."""

from __future__ import annotations

from django.db.models import F
from django.db.transaction import atomic

from executors_app.models import ExecutorRunning
from sessions_app.board.services.tasks import delete_session
from sessions_app.kernel.services.errors import Conflict
from sessions_app.models import Intent, Task


def delete_task(task: Task) -> None:
    """Delete a task, its sessions and their portable records.

    Each session is deleted in a transaction of its own, because others choose how many there are. All are looked at
    before the first one, so that a task with a live agent keeps all of them. Raises Conflict for such a task, and for
    the task of a workflow's run.
    """
    _require_deletable(task)
    # Those that use the worktree of another one first.
    for session in task.sessions.order_by(F("shares_worktree_of").asc(nulls_last=True), "id"):
        delete_session(session)
    with atomic():
        row = Task.objects.select_for_update().filter(id=task.id).first()
        if row is None:
            return
        if row.sessions.exists():
            raise Conflict("Somebody has started another session of this task meanwhile.")
        row.delete()


def _require_deletable(task: Task) -> None:
    if task.workflow_runs.exists():
        raise Conflict("This task belongs to a workflow run, which keeps it. Archive it instead.")
    sessions = task.sessions.all()
    live = ExecutorRunning.objects.filter(session__in=sessions).exclude(status=ExecutorRunning.Status.STOPPED)
    if live.exists() or Intent.objects.filter(session__in=sessions, done_at=None).exists():
        raise Conflict("A session of this task has a live execution. Stop its sessions first.")
