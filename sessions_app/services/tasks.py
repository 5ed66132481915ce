"""Making tasks and sessions, and ending tasks."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

from django.db import transaction
from django.utils import timezone

from executors_app.models import AgentProfile, Executor, ExecutorRunning
from executors_app.plugins import agent_type
from sessions_app.domain.states import DesiredState, TaskState
from sessions_app.models import Prompt, Repository, Task, TaskSession, refresh_task, writing
from sessions_app.services import counted, intents
from sessions_app.services.errors import Conflict, Invalid, NoAgent, TerminalState
from sessions_app.services.maintenance import leftovers
from sessions_app.services.once import Mark, make_once
from sessions_app.services.portable import record as portable_record
from sessions_app.services.worktrees import owner_of, refuse_take_over, take_over

_USERS_STATES: Final = frozenset({TaskState.DONE, TaskState.CANCELLED})
"""What only users set, and only ``reopen`` leaves."""


def create_task_once(user: Any, values: Mapping[str, Any], key: str) -> tuple[Task, bool]:
    """``create_task``, and what it made before with this idempotency ``key`` in the team; (task, whether it is new)."""
    asked = {name: getattr(value, "pk", value) for name, value in values.items()}
    rows = Task.objects.filter(team=values["team"])
    return make_once(rows, key, asked, lambda mark: create_task(user, values, mark))


def create_task(user: Any, values: Mapping[str, Any], mark: Mapping[str, str] | None = None) -> Task:
    """A new task of one of the user's teams.

    ``values``: title, team, and maybe description, repository (a row), repository_path, base_branch.
    Raises Invalid for a repository that the team has not been given (rule 38).
    """
    repository = values.get("repository") or _by_path(values["team"], values.get("repository_path", ""))
    if repository is not None and repository.team_id != values["team"].id:
        raise Invalid("This repository belongs to another team.", field="repository")
    return Task.objects.create(
        title=values["title"],
        description=values.get("description", ""),
        team=values["team"],
        repository=repository,
        base_branch=values.get("base_branch", ""),
        created_by=user,
        **(mark or {}),
    )


def _by_path(team: Any, path: str) -> Repository | None:
    if not path:
        return None
    found = Repository.objects.filter(team=team, path=str(Path(path))).first()
    if found is None:
        raise Invalid("No repository with this path was opened to the team. Staff can add it.", field="repository_path")
    return found


def change_task(task: Task, values: Mapping[str, Any]) -> Task:
    """Change title, description, repository (a row or None) or base_branch; what is left out stays.

    Where a task works is settled by its first session: Conflict from then on.
    """
    with transaction.atomic():
        row = Task.objects.select_for_update(no_key=True).get(id=task.id)
        changed = {name: value for name, value in values.items() if getattr(row, name) != value}
        if changed.keys() & {"repository", "base_branch"} and row.sessions.exists():
            raise Conflict("The task has sessions already, so it stays where it works.")
        for name, value in changed.items():
            setattr(row, name, value)
        row.save(update_fields=[*changed, "updated_at"])
    return row


class AskedOfSession(TypedDict, total=False):
    """What may be said of a new session."""

    prompt: str
    policy: str
    desired_state: str
    worktree_of: TaskSession
    """The session whose worktree the new one takes over."""


def create_session_once(
    user: Any, task: Task, profile: AgentProfile, executor: Executor, key: str, **asked: Unpack[AskedOfSession]
) -> tuple[TaskSession, bool]:
    """``create_session``, and what it made before with this idempotency ``key`` on the task; (session, is it new)."""
    said = {"desired_state": DesiredState.RUNNING, **asked, "agent_profile": profile.id, "executor": executor.id}
    said |= {name: value.id for name, value in asked.items() if isinstance(value, TaskSession)}

    def make(mark: Mark) -> TaskSession:
        return create_session(user, task, profile, executor, **asked, mark=mark)

    return make_once(TaskSession.objects.filter(task=task), key, said, make)


def create_session(
    user: Any,
    task: Task,
    profile: AgentProfile,
    executor: Executor,
    *,
    prompt: str = "",
    policy: str = "",
    desired_state: str = DesiredState.RUNNING,
    has_agent: bool = True,
    model: str = "",
    shares_worktree_of: TaskSession | None = None,
    worktree_of: TaskSession | None = None,
    mark: Mapping[str, str] | None = None,
) -> TaskSession:
    """A new session on a task with its first prompt in the ledger, to be launched in the background.

    Without an agent it is a workspace alone; the profile then says nothing. ``model``: in place of the profile's
    own. In the worktree of another session it works beside that one (``shares_worktree_of``), or in its place
    (``worktree_of``): then whoever worked there is stopped. Raises TerminalState, Invalid, NoAgent,
    WorktreeNotShared, and with ``worktree_of`` Conflict while an agent works there, WorktreeMissing.
    """
    if prompt and not has_agent:
        raise NoAgent
    if task.end:
        raise TerminalState.of_task(task.end)
    if task.repository_id is None:
        raise Invalid("The task names no repository, so a session has nowhere to work.", field="repository")
    taken_over = owner_of(worktree_of, task, executor)
    if taken_over is not None:
        refuse_take_over(taken_over)
    with transaction.atomic():
        if taken_over is not None:
            take_over(taken_over, user)
        session = TaskSession.objects.create(
            task=task,
            agent_profile=profile,
            executor=executor,
            owner=user,
            desired_state=desired_state,
            stopped_by_user=desired_state == DesiredState.STOPPED,
            policy=policy,
            has_agent=has_agent,
            model=model,
            shares_worktree_of=taken_over or owner_of(shares_worktree_of, task, executor),
            **(mark or {}),
        )
        execution = _execution(session)
        TaskSession.objects.filter(id=session.id).update(agent_execution_id=execution.id)
        session.agent_execution_id = execution.id
        if prompt:
            Prompt.objects.create(session=session, message_id=str(uuid.uuid4()), text=prompt, by=user)
        if desired_state == DesiredState.RUNNING:
            intents.order_start(session, user, "auto")
    return session


def _execution(session: TaskSession) -> ExecutorRunning:
    kind = agent_type(session.agent_profile.agent_type)
    return ExecutorRunning.objects.create(
        session=session,
        task_id=session.task_id,
        executor=session.executor,
        runtime=session.executor.runtime,
        status=ExecutorRunning.Status.STOPPED,
        status_reason="new",
        supports_workspace_only=kind.supports_workspace_only,
    )


def archive(task: Task, user: Any) -> Task:
    """Put a task away; its sessions are stopped, and their workspaces stay."""
    with transaction.atomic():
        _stop_sessions(task, user)  # first: whoever changes a session locks it before its task
        Task.objects.filter(id=task.id, archived_at=None).update(archived_at=timezone.now())
    task.refresh_from_db()
    return task


def unarchive(task: Task, user: Any) -> Task:
    """Put an archived task back on the board; its sessions stay stopped until somebody resumes them."""
    Task.objects.filter(id=task.id).exclude(archived_at=None).update(archived_at=None, updated_at=timezone.now())
    task.refresh_from_db()
    return task


def finish(task: Task, user: Any) -> Task:
    """Mark a task as done; its sessions are stopped. Conflict for a cancelled one."""
    return _end(task, user, TaskState.DONE)


def cancel(task: Task, user: Any) -> Task:
    """Mark a task as cancelled; its sessions are stopped. Conflict for one that is done."""
    return _end(task, user, TaskState.CANCELLED)


def _end(task: Task, user: Any, state: TaskState) -> Task:
    with transaction.atomic():
        _stop_sessions(task, user)  # first, as in ``archive``
        row = Task.objects.select_for_update(no_key=True).get(id=task.id)
        if row.state in _USERS_STATES - {state}:
            raise Conflict(f"This task is {row.state.lower()}. Reopen it first.")
        Task.objects.filter(id=task.id).exclude(state=state).update(state=state, updated_at=timezone.now())
    task.refresh_from_db()
    return task


def reopen(task: Task, user: Any) -> Task:
    """Continue a task that is done or cancelled: its state follows from its sessions again."""
    with transaction.atomic():
        # A session that changes now would leave the task as it is, done, and we would not see its change: lock them.
        list(task.sessions.select_for_update(no_key=True).order_by("id").values_list("id"))
        if Task.objects.filter(id=task.id, state__in=_USERS_STATES).update(state=TaskState.TODO):
            refresh_task(task.id)
            Task.objects.filter(id=task.id).update(updated_at=timezone.now())
    task.refresh_from_db()
    return task


def _stop_sessions(task: Task, user: Any) -> None:
    for session in task.sessions.order_by("id"):
        if session.desired_state == DesiredState.RUNNING:
            intents.stop(session.id, user)  # its end says that its work is done
        elif not session.executions.exclude(status=ExecutorRunning.Status.STOPPED).exists():
            with writing(session.id) as draft:
                draft.work("finish")


def delete_session(session: TaskSession) -> None:
    """Forget a session that has no live execution, and its portable record; Conflict for one that may have."""
    with transaction.atomic():
        TaskSession.objects.select_for_update().get(id=session.id)  # first: whoever changes a session begins with it
        live = session.executions.select_for_update().exclude(status=ExecutorRunning.Status.STOPPED)
        if live.exists() or session.intents.filter(done_at=None).exists():
            raise Conflict("The session has a live execution. Stop it first.")
        if session.sharing.exists():
            raise Conflict("Other sessions work in the worktree of this one. Delete them first.")
        forgotten = session.id
        counted.carry_over_session(forgotten)
        leftovers.note(session)
        session.delete()
        transaction.on_commit(lambda: portable_record.forget(forgotten))
