"""Reading a session with all that carrying out an order needs."""

from __future__ import annotations

import uuid

from django.db.models import Q

from executors_app.domain import ExecutionFacts, LaunchSpec
from executors_app.models import ExecutorRunning
from sessions_app.models import TaskSession

BESIDE = ("task__repository", "agent_profile", "executor")
"""What carrying out an order needs beside the session's own row."""


def session_of(session_id: uuid.UUID) -> TaskSession:
    """The session with its task, profile and executor."""
    session: TaskSession = TaskSession.objects.select_related(*BESIDE).get(id=session_id)
    return session


def facts_of(execution: ExecutorRunning, session: TaskSession) -> ExecutionFacts:
    """The execution as the runtimes and the client need it."""
    repository = session.task.repository
    return execution.facts(repository.path if repository else "", session.task.base_branch)


def spec_of(execution: ExecutorRunning, session: TaskSession) -> LaunchSpec:
    """What the runtime needs to launch the session's execution, or to find it again."""
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
    )


def _worktree_of(execution: ExecutorRunning, session: TaskSession) -> tuple[str, str]:
    """Path and branch, both empty before the first launch; of a shared worktree whoever works in it may have made it.

    To make it anew where it once was would be a silent loss.
    """
    if execution.worktree_path or (session.has_agent and session.shares_worktree_of_id is None):
        return execution.worktree_path, execution.worktree_branch
    owner = session.worktree_owner_id
    beside = TaskSession.objects.filter(Q(id=owner) | Q(shares_worktree_of=owner)).exclude(worktree_path="")
    return beside.values_list("worktree_path", "worktree_branch").first() or ("", "")


def execution_facts(session_id: uuid.UUID) -> ExecutionFacts | None:
    """The facts of a session's present execution, read anew."""
    session = session_of(session_id)
    execution = present_execution(session)
    return None if execution is None else facts_of(execution, session)


def present_execution(session: TaskSession) -> ExecutorRunning | None:
    """The session's execution, read anew."""
    if session.agent_execution_id is None:
        return None
    return ExecutorRunning.objects.select_related("executor").filter(id=session.agent_execution_id).first()
