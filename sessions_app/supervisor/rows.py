"""Reading a session with all that carrying out an order needs."""

from __future__ import annotations

import uuid

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
    return LaunchSpec(
        execution_id=str(execution.id),
        session_id=str(session.id),
        task_id=str(session.task_id),
        repository_path=repository.path if repository else "",
        base_branch=session.task.base_branch,
        auth_token=execution.auth_token,
        config=session.executor.config,
        worktree_path=execution.worktree_path,
        worktree_branch=execution.worktree_branch,
    )


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
