"""In whose worktree a session works: its own, another session's beside it, or one that it takes over."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet

from executors_app.models import Executor
from executors_app.plugins import UnknownPlugin, runtime
from executors_app.runtimes import SharesWorktrees
from sessions_app.domain.states import ENDED_STATES, DesiredState
from sessions_app.models import Task, TaskSession, WorkflowRun
from sessions_app.services import intents
from sessions_app.services.assessment import execution_of, is_running
from sessions_app.services.errors import Conflict, WorktreeMissing, WorktreeNotShared
from sessions_app.services.lost_worktrees import reason_lost


def owner_of(wanted: TaskSession | None, task: Task, executor: Executor) -> TaskSession | None:
    """The session that the worktree belongs to, if sessions of ``task`` on ``executor`` can work in it.

    None where none is wanted. Raises WorktreeNotShared.
    """
    if wanted is None:
        return None
    owner = wanted.shares_worktree_of or wanted
    if not isinstance(runtime(executor.runtime), SharesWorktrees):
        raise WorktreeNotShared(f"Sessions on {executor.runtime} cannot share a worktree.", runtime=executor.runtime)
    if (owner.task_id, owner.executor_id) != (task.id, executor.id):
        raise WorktreeNotShared("A worktree is shared by sessions of one task on one executor.")
    return owner


def can_be_taken_over(session: TaskSession) -> bool:
    """Whether a new session on its task could go on in its worktree, as far as no look at the disk is needed."""
    try:
        shares = isinstance(runtime(session.executor.runtime), SharesWorktrees)
    except UnknownPlugin:
        return False
    return shares and bool(session.worktree_path)


def refuse_take_over(owner: TaskSession) -> None:
    """Raise Conflict while an agent or a workflow works in the worktree, WorktreeMissing where it cannot be had."""
    if WorkflowRun.objects.filter(workspace=owner, ended_at=None).exists():
        raise Conflict("A workflow’s run works in this worktree. Wait for its end, or cancel it.")
    for one in _sessions_in(owner):
        if is_running(one, execution_of(one)):
            raise Conflict("An agent works in this worktree. Stop its session first.", session_id=str(one.id))
    if lost := reason_lost(owner):
        raise WorktreeMissing(f"{lost} Start without it.")


def take_over(owner: TaskSession, by: Any) -> None:
    """Stop the sessions that worked in the worktree, in the caller's transaction: none comes back there by itself."""
    for one in _sessions_in(owner).filter(desired_state=DesiredState.RUNNING).exclude(state__in=ENDED_STATES):
        intents.stop(one.id, by)


def _sessions_in(owner: TaskSession) -> QuerySet[TaskSession]:
    rows = TaskSession.objects.filter(Q(id=owner.id) | Q(shares_worktree_of=owner)).order_by("id")
    return rows.select_related("task", "agent_profile", "executor")
