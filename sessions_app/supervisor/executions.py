"""Load sessions with their executions, and convert their rows into what runtimes and clients need."""

from __future__ import annotations

import uuid

from django.db.models import Q

from executors_app.models import ExecutorRunning
from executors_app.repositories.workspace_store import execution_storage
from executors_app.wire.executions import ExecutionFacts, LaunchSpec
from sessions_app.models import TaskSession
from sessions_app.recovery.services.assessment import execution_facts_of

SESSION_RELATED = ("task__repository", "agent_profile", "executor")
"""Relations that carrying out an intent needs, for ``select_related``."""


def load_session(session_id: uuid.UUID) -> TaskSession:
    """Load a session with its task, repository, profile and executor. Raises DoesNotExist."""
    session: TaskSession = TaskSession.objects.select_related(*SESSION_RELATED).get(id=session_id)
    return session


def launch_spec_of(execution: ExecutorRunning, session: TaskSession) -> LaunchSpec:
    """Build what a runtime needs to launch the session's execution, or to find an unfinished launch of it."""
    repository = session.task.repository
    worktree_path, worktree_branch = _worktree_of(execution, session)
    return LaunchSpec(
        execution_id=str(execution.id),
        session_id=str(session.id),
        task_id=str(session.task_id),
        repository_path=repository.path if repository else "",
        base_branch=session.task.base_branch,
        auth_token=execution.auth_token,
        config=session.executor.config,
        worktree_path=worktree_path,
        worktree_branch=worktree_branch,
        worktree_id=str(session.shares_worktree_of_id or ""),
        store_id=repository.store_id if repository else "",
    )


def _worktree_of(execution: ExecutorRunning, session: TaskSession) -> tuple[str, str]:
    """Return path and branch of the worktree; both empty if it was never created.

    A shared worktree may have been created by any session that works in it. Its path must be found: a launch without
    it would create an empty worktree in place of a lost one, and hide the loss.
    """
    if execution.worktree_branch and not execution.worktree_path:
        # Its worktree was on a host that is lost, and is rebuilt here: a new one would hide that work is missing.
        worktree = execution_storage().worktree_of(str(session.worktree_owner_id), "", execution.worktree_branch)
        return str(worktree.path), worktree.branch
    if execution.worktree_path or (session.has_agent and session.shares_worktree_of_id is None):
        return execution.worktree_path, execution.worktree_branch
    owner = session.worktree_owner_id
    sharing = TaskSession.objects.filter(Q(id=owner) | Q(shares_worktree_of=owner)).exclude(worktree_path="")
    return sharing.values_list("worktree_path", "worktree_branch").first() or ("", "")


def load_execution_facts(session_id: uuid.UUID) -> ExecutionFacts | None:
    """Load the facts of a session's present execution; None if it has none."""
    session = load_session(session_id)
    execution = load_execution(session)
    if execution is None:
        return None
    return execution_facts_of(execution, session)


def load_execution(session: TaskSession) -> ExecutorRunning | None:
    """Load the session's present execution with its executor; None if it has none."""
    if session.agent_execution_id is None:
        return None
    return ExecutorRunning.objects.select_related("executor").filter(id=session.agent_execution_id).first()
