"""Create, change and end tasks and sessions, and decide whose worktree a session uses."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

from django.contrib.auth.models import Group, User
from django.db.models import Case, CharField, Exists, OuterRef, Q, QuerySet, Value, When
from django.db.transaction import atomic, on_commit
from django.utils import timezone

from executors_app.models import AgentProfile, Executor, ExecutorRunning
from executors_app.plugins import agent_type, runtime
from executors_app.runtimes import SupportsSharedWorktrees
from sessions_app.agents.services.profiles import enabled, profiles_for
from sessions_app.catalogue.services.offers import default_executor, offered_executors
from sessions_app.catalogue.services.repositories import scratch_root
from sessions_app.kernel.models.session import entering
from sessions_app.kernel.rules.states import ENDED_STATES, DesiredState, TaskState, WorkState
from sessions_app.kernel.services.errors import (
    Conflict,
    ExecutorDisabled,
    Invalid,
    NoAgent,
    NotFound,
    ProfileDisabled,
    TaskChanged,
    TerminalState,
    WorktreeMissing,
    WorktreeNotShared,
)
from sessions_app.kernel.services.idempotency import IdempotencyMark, create_once, mark_request
from sessions_app.maintenance import files
from sessions_app.metrics import counters as metric_counters
from sessions_app.models import (
    Intent,
    IntentKind,
    Prompt,
    Repository,
    Task,
    TaskSession,
    refresh_task_state,
    session_transaction,
)
from sessions_app.planning.services import PLAN_VALUES, change_plan
from sessions_app.portable import record as portable_record
from sessions_app.prompts.rules.attachments import AttachedFile
from sessions_app.prompts.services import store_files
from sessions_app.recovery.services.assessment import execution_of, is_running, worktree_loss_reason
from sessions_app.sessions.services import intents
from sessions_app.workflows.models import WorkflowRun


def visible_tasks(user: User) -> QuerySet[Task]:
    """Return the tasks of the user's teams, with the work state of the busiest session as ``agent_work_state``."""
    sessions = TaskSession.objects.filter(task=OuterRef("pk"))
    working, done = (
        When(Exists(sessions.filter(work_state=state)), then=Value(state.value))
        for state in (WorkState.WORKING, WorkState.DONE)
    )
    state = Case(working, done, default=Value(WorkState.IDLE.value), output_field=CharField())
    found: QuerySet[Task] = Task.objects.visible_to(user).select_related("team", "repository")
    return found.annotate(agent_work_state=state)


def worktree_owner(wanted: TaskSession | None, task: Task, executor: Executor) -> TaskSession | None:
    """Return the session that owns the wanted worktree; None if none is wanted.

    Raises WorktreeNotShared if sessions of ``task`` on ``executor`` cannot use it.
    """
    if wanted is None:
        return None
    owner = wanted.shares_worktree_of or wanted
    if not isinstance(runtime(executor.runtime), SupportsSharedWorktrees):
        raise WorktreeNotShared(f"Sessions on {executor.runtime} cannot share a worktree.", runtime=executor.runtime)
    if (owner.task_id, owner.executor_id) != (task.id, executor.id):
        raise WorktreeNotShared("Only sessions of the same task and executor can share a worktree.")
    return owner


def require_can_be_taken_over(owner: TaskSession) -> None:
    """Raise Conflict while an agent or a workflow uses the worktree, and WorktreeMissing if it is lost."""
    if WorkflowRun.objects.filter(workspace=owner, ended_at=None).exists():
        raise Conflict("A workflow run is using this worktree. Wait until it ends, or cancel it.")
    for session in _sessions_in_worktree(owner):
        if is_running(session, execution_of(session)):
            raise Conflict("An agent is working in this worktree. Stop its session first.", session_id=str(session.id))
    if lost := worktree_loss_reason(owner):
        raise WorktreeMissing(f"{lost} Start without it.")


def take_over_worktree(owner: TaskSession, by: User | None) -> None:
    """Stop the sessions that use the worktree, in the caller's transaction, so that none returns automatically."""
    running = _sessions_in_worktree(owner).filter(desired_state=DesiredState.RUNNING)
    for session in running.exclude(state__in=ENDED_STATES):
        intents.request_stop(session.id, by)


def _sessions_in_worktree(owner: TaskSession) -> QuerySet[TaskSession]:
    rows = TaskSession.objects.filter(Q(id=owner.id) | Q(shares_worktree_of=owner)).order_by("id")
    return rows.select_related("task", "agent_profile", "executor")


_USER_SET_STATES: Final = frozenset({TaskState.DONE, TaskState.CANCELLED})
"""States that only users set, and that only ``reopen_task`` leaves."""


def mark_task(values: Mapping[str, Any], key: str) -> IdempotencyMark:
    """Return the mark of a request for a task with an idempotency ``key``; not for transactions. Raises Invalid."""
    return mark_request(key, {name: getattr(value, "pk", value) for name, value in values.items()})


def create_task_once(user: User, values: Mapping[str, Any], mark: IdempotencyMark) -> tuple[Task, bool]:
    """Create a task once per mark (``mark_task``) and team; return it, and whether it is new."""
    rows = Task.objects.filter(team=values["team"])
    return create_once(rows, mark, lambda mark: create_task(user, values, mark))


def create_task(user: User, values: Mapping[str, Any], mark: Mapping[str, str] | None = None) -> Task:
    """Create a task in one of the user's teams.

    ``values``: title, team, and maybe description, repository (a row), repository_path, base_branch. Without a
    base_branch, the task starts where the repository's settings say (``default_base``).
    Raises Invalid for a repository that staff have not opened to the team.
    """
    repository = values.get("repository") or _repository_by_path(values["team"], values.get("repository_path", ""))
    base = values.get("base_branch", "")
    if repository is not None:
        if repository.team_id != values["team"].id:
            raise Invalid("This repository belongs to another team.", field="repository")
        _require_open(repository)
        base = base or repository.default_base
    return Task.objects.create(
        title=values["title"],
        description=values.get("description", ""),
        team=values["team"],
        repository=repository,
        base_branch=base,
        created_by=user,
        **(mark or {}),
    )


def _require_open(repository: Repository) -> None:
    if repository.removed_at is not None:
        raise Invalid("This repository was removed from the team. Choose another one.", field="repository")


def _repository_by_path(team: Group, path: str) -> Repository | None:
    if not path:
        return None
    found = Repository.objects.filter(team=team, path=str(Path(path))).first()
    if found is None:
        raise Invalid(
            "No repository with this path is available to the team. Staff can add it.", field="repository_path"
        )
    return found


BRANCH_PATTERN: Final = r"^(?![-/.])(?!.*(?:\.\.|@\{|//|\.lock$|[/.]$))[^\s\x00-\x1f\x7f~^:?*\[\\]+$"
"""Approximately what git allows as the name of a branch or tag."""
DESCRIPTION_LIMIT: Final = 1024 * 1024


def text_version(task: Task) -> str:
    """Return what identifies a task's present title and description, for an editor that has seen them.

    A digest, and not a counter: a release that knows no versions may change the texts, too.
    """
    return hashlib.sha256(f"{task.title}\0{task.description}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def change_task(task: Task, values: Mapping[str, Any], version: str | None = None) -> Task:
    """Change title, description, repository (a row or None), base_branch, or what ``change_plan`` takes.

    Missing values stay.

    ``version`` is the ``text_version`` that the editor has seen; None: whatever the texts are now. Raises TaskChanged
    if they are others, unless they are already as wanted. Once the task has a session, its repository cannot change,
    and once one has started, nor can its base branch (Conflict). Raises what ``change_plan`` raises.
    """
    with atomic():
        if "base_branch" in values:
            # First, as in ``reopen_task``: a start locks its session, so none begins from the base that is replaced.
            list(task.sessions.select_for_update(no_key=True).order_by("id").values_list("id"))
        row = _lock_task(task)
        rewritten = any(name in values and values[name] != getattr(row, name) for name in ("title", "description"))
        if rewritten and version is not None and version != text_version(row):
            raise TaskChanged(version=text_version(row), title=row.title, description=row.description)
        plan = {name: value for name, value in values.items() if name in PLAN_VALUES}
        if plan:
            change_plan(row, plan)
        own = {name: value for name, value in values.items() if name not in PLAN_VALUES}
        changed = {name: value for name, value in own.items() if getattr(row, name) != value}
        if "repository" in changed and row.sessions.exists():
            raise Conflict("The repository of a task cannot change once it has sessions.")
        if "base_branch" in changed and is_base_used(row):
            raise Conflict(BASE_IS_USED)
        if changed.get("repository") is not None:
            _require_open(changed["repository"])
        for name, value in changed.items():
            setattr(row, name, value)
        row.save(update_fields=[*changed, "updated_at"])
    return row


BASE_IS_USED: Final = (
    "The base branch of this task cannot change any more: a session has started from it, and is compared with it and "
    "merged into it. Create another task with the base branch that you want."
)


def is_base_used(task: Task) -> bool:
    """Whether a session of the task has started from its base branch, or may be starting."""
    sessions = task.sessions.all()
    live = ExecutorRunning.objects.filter(session__in=sessions).exclude(status=ExecutorRunning.Status.STOPPED)
    starting = Intent.objects.filter(session__in=sessions, kind=IntentKind.START, done_at=None)
    # The first launch sets the worktree, which remains when the session is stopped.
    return sessions.exclude(worktree_id="").exists() or live.exists() or starting.exists()


def _lock_task(task: Task) -> Task:
    """Return the task as it is now, locked. Raises NotFound if it was deleted meanwhile."""
    row: Task | None = Task.objects.select_for_update(no_key=True).filter(id=task.id).first()
    if row is None:
        raise NotFound
    return row


def _reread(task: Task) -> Task:
    """Read a changed task again. Raises NotFound if it was deleted meanwhile."""
    try:
        task.refresh_from_db()
    except Task.DoesNotExist as error:
        raise NotFound from error
    return task


class NewSessionValues(TypedDict, total=False):
    """Optional values of a new session."""

    prompt: str
    files: Sequence[AttachedFile]
    """Files of the prompt, checked by ``prompts.services.check_files``."""
    policy: str
    desired_state: str
    executor_pool: str
    """The pool that places the session when it first starts, on any of its executors; empty: the executor is fixed."""
    worktree_of: TaskSession
    """The session whose worktree the new one takes over."""


def mark_session(
    profile: AgentProfile, executor: Executor, key: str, **values: Unpack[NewSessionValues]
) -> IdempotencyMark:
    """Return the mark of a request for a session with an idempotency ``key``; not for transactions. Raises Invalid."""
    request = {"desired_state": DesiredState.RUNNING, **values, "agent_profile": profile.id}
    if not values.get("executor_pool"):
        request = {name: value for name, value in request.items() if name != "executor_pool"}
        request["executor"] = executor.id
    if files := values.get("files"):
        request["files"] = [file.described() for file in files]
    if owner := values.get("worktree_of"):
        request["worktree_of"] = owner.id
    return mark_request(key, request)


def create_session_once(
    user: User,
    task: Task,
    profile: AgentProfile,
    executor: Executor,
    mark: IdempotencyMark,
    **values: Unpack[NewSessionValues],
) -> tuple[TaskSession, bool]:
    """Create a session once per mark (``mark_session``) and task; return it, and whether it is new.

    Without ``prompt`` the task's first session gets the task's description; an empty one means none.
    """

    def make(mark: IdempotencyMark) -> TaskSession:
        # Chosen here, so that a repeated request, when the task has this session, has the same digest as the first.
        session_values = values.copy()
        if "prompt" not in session_values:
            session_values["prompt"] = first_prompt(task)
        return create_session(user, task, profile, executor, **session_values, mark=mark)

    return create_once(TaskSession.objects.filter(task=task), mark, make)


def create_session(
    user: User | None,
    task: Task,
    profile: AgentProfile,
    executor: Executor,
    *,
    prompt: str = "",
    files: Sequence[AttachedFile] = (),
    policy: str = "",
    desired_state: str = DesiredState.RUNNING,
    executor_pool: str = "",
    has_agent: bool = True,
    model: str = "",
    shares_worktree_of: TaskSession | None = None,
    worktree_of: TaskSession | None = None,
    mark: Mapping[str, str] | None = None,
) -> TaskSession:
    """Create a session with its first prompt queued; a supervisor starts it in the background.

    Without an agent it is only a workspace, and the profile has no effect. ``model`` overrides the profile's. The
    session uses the worktree of another one beside it (``shares_worktree_of``) or in its place (``worktree_of``), which
    stops the sessions there. ``files`` go with the prompt. With ``executor_pool``, ``executor`` is one of that pool,
    which chooses another one when the session starts, unless a worktree fixes it. Raises TerminalState, Invalid,
    NoAgent, ExecutorDisabled, ProfileDisabled, WorktreeNotShared, and with ``worktree_of`` Conflict while an agent
    works there, and WorktreeMissing.
    """
    _require_enabled(executor, profile if has_agent else None)
    if (prompt or files) and not has_agent:
        raise NoAgent
    if files and not prompt:
        raise Invalid("Files need a prompt that explains what to do with them.", field="prompt")
    if task.end:
        raise TerminalState.of_task(task.end)
    if task.repository_id is None:
        raise Invalid("The task has no repository for a session to work in. Choose one first.", field="repository")
    taken_over = worktree_owner(worktree_of, task, executor)
    if taken_over is not None:
        require_can_be_taken_over(taken_over)
    with atomic():
        if taken_over is not None:
            take_over_worktree(taken_over, user)
        session = TaskSession.objects.create(
            task=task,
            agent_profile=profile,
            executor=executor,
            executor_pool="" if worktree_of or shares_worktree_of else executor_pool,
            owner=user,
            desired_state=desired_state,
            stopped_by_user=desired_state == DesiredState.STOPPED,
            policy=policy,
            has_agent=has_agent,
            model=model,
            shares_worktree_of=taken_over or worktree_owner(shares_worktree_of, task, executor),
            **(mark or {}),
        )
        execution = _execution(session)
        TaskSession.objects.filter(id=session.id).update(agent_execution_id=execution.id)
        session.agent_execution_id = execution.id
        if prompt:
            attached = store_files(session, files)
            Prompt.objects.create(
                session=session, message_id=str(uuid.uuid4()), text=prompt, by=user, attachments=attached
            )
        if desired_state == DesiredState.RUNNING:
            intents.ensure_start_intent(session, user, "auto")
    return session


def _require_enabled(executor: Executor, profile: AgentProfile | None) -> None:
    """Raise ExecutorDisabled, ProfileDisabled."""
    if executor.disabled_at is not None:
        raise ExecutorDisabled(
            f"The executor “{executor.name}” is disabled, so no new session can use it. Choose another one."
        )
    if profile is not None and profile.disabled_at is not None:
        raise ProfileDisabled(
            f"The agent profile “{profile.name}” is disabled, so no new session can use it. Choose another one."
        )


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


def archive_task(task: Task, user: User) -> Task:
    """Archive a task; its sessions are stopped, and their workspaces stay."""
    with atomic():
        _stop_sessions(task, user)  # first: everyone locks a session before its task, so that no two deadlock
        Task.objects.filter(id=task.id, archived_at=None).update(archived_at=timezone.now())
    return _reread(task)


def unarchive_task(task: Task, user: User) -> Task:
    """Put an archived task back on the board; its sessions stay stopped until someone resumes them."""
    Task.objects.filter(id=task.id).exclude(archived_at=None).update(archived_at=None, updated_at=timezone.now())
    return _reread(task)


def finish_task(task: Task, user: User) -> Task:
    """Mark a task as done; its sessions are stopped. Conflict for a cancelled one."""
    return _end_task(task, user, TaskState.DONE)


def cancel_task(task: Task, user: User) -> Task:
    """Mark a task as cancelled; its sessions are stopped. Conflict for one that is done."""
    return _end_task(task, user, TaskState.CANCELLED)


def _end_task(task: Task, user: User, state: TaskState) -> Task:
    with atomic():
        _stop_sessions(task, user)  # first, as in ``archive_task``
        row = _lock_task(task)
        if row.state in _USER_SET_STATES - {state}:
            raise Conflict(f"This task is {row.state.lower()}. Reopen it first.")
        Task.objects.filter(id=task.id).exclude(state=state).update(**entering(state))
    return _reread(task)


def reopen_task(task: Task, user: User) -> Task:
    """Continue a task that is done or cancelled: its state follows from its sessions again."""
    with atomic():
        # Lock the sessions first: a change that commits while the task is still done would not reach its state.
        list(task.sessions.select_for_update(no_key=True).order_by("id").values_list("id"))
        if Task.objects.filter(id=task.id, state__in=_USER_SET_STATES).update(**entering(TaskState.TODO)):
            refresh_task_state(task.id)
            Task.objects.filter(id=task.id).update(updated_at=timezone.now())
    return _reread(task)


def _stop_sessions(task: Task, user: User) -> None:
    for session in task.sessions.order_by("id"):
        if session.desired_state == DesiredState.RUNNING:
            intents.request_stop(session.id, user)  # when it has stopped, its work is recorded as finished
        elif not session.executions.exclude(status=ExecutorRunning.Status.STOPPED).exists():
            with session_transaction(session.id) as transaction:
                transaction.move_work("finish")


def lock_to_delete(session: TaskSession) -> bool:
    """Lock a session in the caller's transaction; return False if it is gone.

    Raises Conflict if it may have a live execution, if a merge or push of it is carried out, and if others use its
    worktree.
    """
    # Locked first, like for every change to a session.
    if not TaskSession.objects.select_for_update().filter(id=session.id).exists():
        return False
    live = session.executions.select_for_update().exclude(status=ExecutorRunning.Status.STOPPED)
    if live.exists() or session.intents.filter(done_at=None).exists():
        raise Conflict("The session has a live execution. Stop it first.")
    if session.finish_intents.pending().exists():
        raise Conflict("A merge or push of this session is being carried out. Wait for its end, then try again.")
    if session.sharing.exists():
        raise Conflict("Other sessions use the worktree of this one. Delete them first.")
    return True


def delete_session(session: TaskSession) -> None:
    """Delete a session and its portable record; one that is gone already is no error.

    Raises what ``lock_to_delete`` raises.
    """
    with atomic():
        if not lock_to_delete(session):
            return
        forgotten = session.id
        metric_counters.keep_session_counts(forgotten)
        files.note_leftover(session)
        session.delete()
        # After the commit: if the deletion is rolled back, the session keeps its record.
        on_commit(lambda: portable_record.forget_record(forgotten))


@dataclass(frozen=True, slots=True)
class DefaultChoice:
    """Ids to preselect in a form; None: nothing was chosen yet."""

    profile: uuid.UUID | None = None
    executor: uuid.UUID | None = None
    repository: uuid.UUID | None = None


def default_choice(user: User) -> DefaultChoice:
    """Return what the user chose last, among what they can still see; one query."""
    rows = TaskSession.objects.visible_to(user).filter(owner=user).order_by("-created_at")
    rows = rows.exclude(task__repository__path__startswith=f"{scratch_root()}/")  # nobody chose what a test runs with
    last = rows.values_list("agent_profile_id", "executor_id", "task__repository_id").first()
    if last:
        return DefaultChoice(*last)
    return DefaultChoice()


def usual_choice(user: User, task: Task) -> tuple[AgentProfile, Executor]:
    """Return the agent profile and executor that the user chose last, else the oldest profile and the default executor.

    Raises Invalid if there is no profile or no executor.
    """
    usual = default_choice(user)
    profiles = enabled(profiles_for(task))
    profile = next((row for row in profiles if row.pk == usual.profile), None) or oldest(profiles)
    executor = next((row for row in offered_executors() if row.pk == usual.executor), None) or default_executor()
    if profile is None or executor is None:
        raise Invalid("There is no agent profile or no executor yet. Staff can add them.")
    return profile, executor


def oldest(profiles: QuerySet[AgentProfile]) -> AgentProfile | None:
    """Return the profile that is used if nobody chooses: not the first by name, which a new one might become."""
    return profiles.order_by("created_at", "id").first()


def first_prompt(task: Task) -> str:
    """Return the prompt of a new session if nobody has written one: the description, for the task's first session."""
    if not task.description.strip() or task.sessions.exists():
        return ""
    return task.description


def create_session_with_defaults(user: User, task: Task, *, again: bool = False) -> TaskSession:
    """Create a session with ``usual_choice`` and the description as its prompt. Raises the errors of both.

    Without ``again``, only the task's first session gets that prompt.
    """
    profile, executor = usual_choice(user, task)
    prompt = task.description if again and task.description.strip() else first_prompt(task)
    return create_session(user, task, profile, executor, prompt=prompt, executor_pool=executor.pool)
