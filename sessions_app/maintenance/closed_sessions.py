"""Which sessions are closed for retention, and since when."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Final

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from executors_app.models import ExecutorRunning
from executors_app.wire.executions import ExecutorStatus
from sessions_app.kernel.rules.states import SessionState, TaskState
from sessions_app.models import Intent, TaskSession
from sessions_app.workflows.models import WorkflowRun

CLOSED_STATES: Final = (SessionState.COMPLETED, SessionState.CANCELLED)
"""States that a session never leaves."""
ENDED_TASKS: Final = (TaskState.DONE, TaskState.CANCELLED)
"""States that a task leaves only if a user reopens it."""


def closed_before(cutoff: datetime) -> Q:
    """Return the condition for sessions that were closed before a time and have not changed since.

    A session is closed when it was completed or cancelled, and when its task is done, cancelled or archived: then only
    if nothing of it runs or is about to start, and no workflow run uses the task.
    """
    uses = (_live_executions(), _open_intents(), _open_runs())
    is_unused = Q(*(~Exists(rows) for rows in uses))
    is_closed = Q(state__in=CLOSED_STATES) | (_task_ended_before(cutoff) & is_unused)
    return Q(updated_at__lt=cutoff) & is_closed


def _task_ended_before(cutoff: datetime) -> Q:
    is_ended = Q(task__state__in=ENDED_TASKS)
    is_known = Q(task__entered_state=F("task__state"), task__entered_at__isnull=False)
    entered = is_ended & is_known & Q(task__entered_at__lt=cutoff)
    # Ended by a release that did not record when: not after the task's last change.
    changed = is_ended & ~is_known & Q(task__updated_at__lt=cutoff)
    return Q(task__archived_at__lt=cutoff) | entered | changed


def _live_executions() -> QuerySet[ExecutorRunning]:
    return ExecutorRunning.objects.filter(session=OuterRef("pk")).exclude(status=ExecutorStatus.STOPPED)


def _open_intents() -> QuerySet[Intent]:
    return Intent.objects.filter(session=OuterRef("pk"), done_at=None)


def _open_runs() -> QuerySet[WorkflowRun]:
    return WorkflowRun.objects.filter(task=OuterRef("task"), ended_at=None)


def lock_if_closed(session_id: uuid.UUID, cutoff: datetime) -> bool:
    """Lock a session in the caller's transaction; return whether it is closed, as ``closed_before`` says.

    Until the end of the transaction nothing of it can be started.
    """
    # Locked first and looked at then: a condition in the same statement could be about the row before the lock.
    if not TaskSession.objects.select_for_update().filter(id=session_id).exists():
        return False
    return TaskSession.objects.filter(closed_before(cutoff), id=session_id).exists()
