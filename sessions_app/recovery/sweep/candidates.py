"""What a sweep reads: the sessions that claim to run or should run, in a constant number of queries."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db.models import BooleanField, Exists, ExpressionWrapper, F, OuterRef, Q, QuerySet

from executors_app.models import AgentProfile, ExecutorRunning
from executors_app.orm import FEW, NUMBER_PLACEHOLDER, KeyedQuery
from executors_app.wire.executions import ExecutionFacts, ExecutorStatus, Observation
from sessions_app.accounts.models import TeamRole
from sessions_app.kernel.rules.states import (
    OPEN_RUN_STATES,
    DesiredState,
    PromptState,
    SessionState,
    TaskState,
    WorkState,
)
from sessions_app.models import DRAINED_REASON, IDLE_REASON, Intent, IntentKind, Prompt, Repository, TaskSession, Turn
from sessions_app.recovery.rules.recovery import SweepFacts
from sessions_app.recovery.rules.resumability import HOST_LOST, Policy, PolicyChoice, assess, effective_policy
from sessions_app.recovery.services import assessment
from sessions_app.recovery.services.assessment import SessionRows, find_flaws, flaws_sentence, resume_facts
from sessions_app.supervisor import leases
from sessions_app.suspensions.models import suspensions_that_hold

CLAIMING_STATUSES = (ExecutorStatus.STARTING, ExecutorStatus.READY)
RESTING_STATES = (SessionState.CREATED, SessionState.COMPLETED, SessionState.FAILED, SessionState.CANCELLED)
SETTLED_ERRORS = ("worktree_missing",)
"""Errors that no sweep checks again, because that takes several calls of git; a user's *try again* does."""
SECRET_COLUMNS: Final = {"has_token": "resume_token", "has_rejected_token": "rejected_resume_token"}
DECODE_ERRORS = (ValueError, TypeError, AttributeError, OverflowError)
"""What reading a column raises if its text is no value of its type."""


class StoredExecution(NamedTuple):
    """The columns that a sweep needs, by their names in the query; plain values cost half as much as models."""

    id: uuid.UUID
    session_id: uuid.UUID
    task_id: uuid.UUID
    runtime: str
    host_id: str
    agentctl_url: str
    auth_token: str
    status: str
    status_reason: str
    generation: int
    pid: int | None
    container_id: str
    workspace_path: str
    worktree_path: str
    worktree_branch: str
    worktree_id: str
    state: dict[str, Any]
    executor__config: dict[str, Any] | None
    error_code: str
    owner: str
    lease_expires_at: datetime | None
    last_seen_at: datetime | None
    updated_at: datetime
    journal_epoch: str
    journal_seq: int
    supports_session_resume: bool | None
    has_token: bool
    has_rejected_token: bool
    session__state: str
    session__error_code: str
    session__has_agent: bool
    session__desired_state: str
    session__work_state: str
    session__policy: str
    session__metadata: dict[str, Any]
    session__launch_id: str
    session__stopped_by_user: bool
    session__context_mismatch: bool
    session__start_attempts: int
    session__next_restart_at: datetime | None
    session__start_rank: int | None
    session__agent_profile_id: uuid.UUID
    session__executor_id: uuid.UUID
    session__owner_id: int | None
    session__task__title: str
    session__task__state: str
    session__task__archived_at: datetime | None
    session__task__team_id: int
    session__task__base_branch: str
    session__task__repository_id: uuid.UUID | None


def select_executions(sessions: Collection[uuid.UUID] = (), runtime: str = "") -> QuerySet[ExecutorRunning]:
    """Select the executions that a sweep covers: those that claim to run, and those that should.

    Only a session's present execution counts. The cost depends on what runs, not on how many sessions there are.
    """
    claims = Q(status__in=CLAIMING_STATUSES)
    unreachable = Q(status=ExecutorStatus.ERROR) & ~Q(error_code__in=SETTLED_ERRORS)
    should = Q(session__desired_state=DesiredState.RUNNING) & ~Q(session__state__in=RESTING_STATES)
    asleep = Q(status=ExecutorStatus.STOPPED, status_reason__in=(IDLE_REASON, DRAINED_REASON, HOST_LOST, "new"))
    wanted = claims | (should & (unreachable | Q(status=ExecutorStatus.STOPPED)) & ~asleep)
    rows = ExecutorRunning.objects.filter(wanted, session__agent_execution_id=F("id"))
    if sessions:
        rows = rows.filter(session_id__in=sessions)
    else:
        # The same conditions of each table alone: no database has an index for an *or* over both.
        running = TaskSession.objects.filter(desired_state=DesiredState.RUNNING).exclude(state__in=RESTING_STATES)
        claiming = ExecutorRunning.objects.filter(claims).order_by().values("session_id")
        rows = rows.filter(session_id__in=claiming.union(running.order_by().values("id")))
    if runtime:
        rows = rows.filter(session__executor__runtime=runtime)
    return rows.order_by("session_id")


def _stored_columns(sessions: Collection[uuid.UUID], runtime: str = "") -> Any:
    # A sweep needs to know only whether there is a token, so no token is decrypted.
    kept = {name: ExpressionWrapper(~Q(**{column: ""}), BooleanField()) for name, column in SECRET_COLUMNS.items()}
    return select_executions(sessions, runtime).annotate(**kept).values_list(*StoredExecution._fields)


_OF_FEW: Final = KeyedQuery(_stored_columns)


def load_stored_executions(
    sessions: Collection[uuid.UUID] = (), runtime: str = ""
) -> tuple[list[StoredExecution], dict[uuid.UUID, Exception]]:
    """Load the rows that ``select_executions`` selects; also return, by session, the errors of unreadable rows."""
    few = 0 < len(sessions) <= FEW and not runtime
    try:
        if few:
            rows = _OF_FEW.values(sorted(sessions))
        else:
            rows = _stored_columns(sessions, runtime)
        return list(map(StoredExecution._make, rows)), {}
    except DECODE_ERRORS:
        return _load_one_by_one(_stored_columns(sessions, runtime))


def _load_one_by_one(columns: Any) -> tuple[list[StoredExecution], dict[uuid.UUID, Exception]]:
    """Load the rows one at a time, so that an unreadable one does not hide the others."""
    found: list[StoredExecution] = []
    unreadable: dict[uuid.UUID, Exception] = {}
    for session_id in list(columns.values_list("session_id", flat=True)):
        try:
            found.append(StoredExecution._make(columns.get(session_id=session_id)))
        except DECODE_ERRORS as error:
            unreadable[session_id] = error
    return found, unreadable


@dataclass(frozen=True, slots=True)
class CorruptRow:
    """A session that the sweep skips, and what is wrong with its rows."""

    session_id: uuid.UUID
    task_id: uuid.UUID
    task_title: str
    runtime: str
    session_state: str
    executor_status: str
    flaws: str


def find_corruption(one: StoredExecution, agent_type: str) -> CorruptRow | None:
    """Return what is wrong with one row; None if nothing is."""
    values = {
        "state": one.session__state,
        "desired_state": one.session__desired_state,
        "work_state": one.session__work_state,
        "policy": one.session__policy,
        "metadata": one.session__metadata,
        "start_attempts": one.session__start_attempts,
        "status": one.status,
        "runtime_state": one.state,
        "auth_token": one.auth_token,
        "generation": one.generation,
        "journal_seq": one.journal_seq,
    }
    found = find_flaws(values, agent_type)
    if not found:
        return None
    return CorruptRow(
        session_id=one.session_id,
        task_id=one.task_id,
        task_title=one.session__task__title,
        runtime=one.runtime,
        session_state=one.session__state,
        executor_status=one.status,
        flaws=flaws_sentence(found),
    )


def unreadable_row(session_id: uuid.UUID, error: Exception) -> CorruptRow:
    """Describe a session whose execution row cannot be read."""
    columns = ("task_id", "task__title", "executor__runtime")
    task_id, title, runtime = TaskSession.objects.values_list(*columns).get(id=session_id)
    return CorruptRow(
        session_id, task_id, title, runtime, "", "", flaws_sentence([f"a column cannot be read ({error})"])
    )


def _dangling(sessions: Collection[uuid.UUID] = (), runtime: str = "") -> Any:
    there = ExecutorRunning.objects.filter(id=OuterRef("agent_execution_id"))
    rows = TaskSession.objects.filter(~Exists(there), desired_state=DesiredState.RUNNING).exclude(
        agent_execution_id=None
    )
    if sessions:
        rows = rows.filter(id__in=sessions)
    if runtime:
        rows = rows.filter(executor__runtime=runtime)
    return rows.values_list("id", "task_id", "task__title", "executor__runtime", "state", "agent_execution_id")


_DANGLING_OF_FEW: Final = KeyedQuery(_dangling)


def find_dangling_sessions(sessions: Collection[uuid.UUID], runtime: str) -> list[CorruptRow]:
    """Return the sessions that should run but name an execution that does not exist."""
    if runtime or not sessions:
        rows = _dangling(sessions, runtime)
    else:
        rows = _DANGLING_OF_FEW.values(sessions)
    return [
        CorruptRow(
            session_id,
            task_id,
            title,
            place,
            state,
            "",
            flaws_sentence([f"agent_execution_id names no execution: {key}"]),
        )
        for session_id, task_id, title, place, state, key in rows
    ]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One session with its execution, and all other rows that its decision depends on."""

    stored: StoredExecution
    place: ExecutionFacts
    profile: AgentProfile
    foreign: bool
    start_created_at: datetime | None
    """When the open start intent was created; None if there is none."""
    queued: bool
    """Whether it has queued prompts."""
    open_run: bool
    ever_prompted: bool
    owner_in_team: bool
    policy: str = "auto"
    """The effective recovery policy: the session's own, else its team's, else the deployment's."""


_PROFILES: Final = KeyedQuery(lambda ids: AgentProfile.objects.filter(id__in=ids))
_STARTS: Final = KeyedQuery(
    lambda ids: Intent.objects.filter(session_id__in=ids, done_at=None, kind=IntentKind.START).values_list(
        "session_id", "created_at"
    )
)
_QUEUED: Final = KeyedQuery(
    lambda ids: (
        Prompt.objects.filter(session_id__in=ids, state=PromptState.QUEUED)
        .exclude(Exists(suspensions_that_hold().filter(session=OuterRef("session"))))
        .order_by()
        .values_list("session_id")
    )
)
_RUNS: Final = KeyedQuery(
    lambda ids: (
        Turn.objects.filter(session_id__in=ids).order_by().values_list("session_id", "state", "has_process").distinct()
    )
)
_REPOSITORIES: Final = KeyedQuery(
    lambda ids: Repository.objects.filter(id__in=ids).values_list("id", "path", "store_id")
)


def load_candidates(
    boot_id: str, sessions: Collection[uuid.UUID] = (), runtime: str = ""
) -> tuple[list[Candidate], list[CorruptRow]]:
    """Load everything that decisions need, in a constant number of queries, and the corrupt rows that are skipped.

    ``boot_id`` is the boot id of this supervisor. Empty ``sessions`` or ``runtime`` mean all.
    """
    found, unreadable = load_stored_executions(sessions, runtime)
    damaged = find_dangling_sessions(sessions, runtime) + [unreadable_row(*one) for one in unreadable.items()]
    profiles = {profile.pk: profile for profile in _PROFILES.all({one.session__agent_profile_id for one in found})}
    sound = []
    for one in found:
        harm = find_corruption(one, profiles[one.session__agent_profile_id].agent_type)
        if harm is None:
            sound.append(one)
        else:
            damaged.append(harm)
    return _rows(boot_id, sound, profiles), damaged


def _rows(boot_id: str, stored: list[StoredExecution], profiles: Mapping[uuid.UUID, AgentProfile]) -> list[Candidate]:
    """Build the candidates; each of the queries here is for all sessions at once."""
    ids = [one.session_id for one in stored]
    in_flight: dict[uuid.UUID, datetime] = dict(_STARTS.values(ids))  # type: ignore[arg-type]
    queued = {session_id for (session_id,) in _QUEUED.values(ids)}
    runs = list(_RUNS.values(ids))
    prompted = {session_id for session_id, _, _ in runs}
    turning = {session_id for session_id, state, has_process in runs if has_process and state in OPEN_RUN_STATES}
    repositories = _repositories(stored)
    teams = _owner_teams(stored)
    team_policies = assessment.team_choices([one.session__task__team_id for one in stored])
    deployment = assessment.deployment_policy()
    foreign = leases.leased_by_others([(one.id, one.owner, one.lease_expires_at) for one in stored], boot_id)
    return [
        Candidate(
            stored=one,
            place=_execution_facts(one, repositories.get(one.session__task__repository_id, ("", ""))),
            profile=profiles[one.session__agent_profile_id],
            foreign=one.id in foreign,
            start_created_at=in_flight.get(one.session_id),
            queued=one.session_id in queued,
            open_run=one.session_id in turning,
            ever_prompted=one.session_id in prompted,
            owner_in_team=one.session__owner_id is None or (one.session__owner_id, one.session__task__team_id) in teams,
            policy=effective_policy(
                PolicyChoice(one.session__policy),
                team_policies.get(one.session__task__team_id, assessment.NO_CHOICE),
                deployment,
            ).policy,
        )
        for one in stored
    ]


def _repositories(stored: Collection[StoredExecution]) -> Mapping[uuid.UUID | None, tuple[str, str]]:
    """Return the path and the object store's name of each repository."""
    wanted = {one.session__task__repository_id for one in stored if one.session__task__repository_id}
    return {key: (path, store_id) for key, path, store_id in _REPOSITORIES.values(wanted)}


def _execution_facts(one: StoredExecution, repository: tuple[str, str]) -> ExecutionFacts:
    """Build the facts for runtimes and client; a token that cannot be decrypted counts as empty.

    ``repository``: its path and the name of its object store.
    """
    path, store_id = repository
    return ExecutionFacts(
        id=str(one.id),
        session_id=str(one.session_id),
        task_id=str(one.task_id),
        runtime=one.runtime,
        host_id=one.host_id,
        agentctl_url=one.agentctl_url,
        auth_token=one.auth_token if isinstance(one.auth_token, str) else "",
        status=one.status,
        generation=one.generation,
        pid=one.pid,
        container_id=one.container_id,
        repository_path=path,
        store_id=store_id,
        base_branch=one.session__task__base_branch,
        workspace_path=one.workspace_path,
        worktree_path=one.worktree_path,
        worktree_branch=one.worktree_branch,
        worktree_id=one.worktree_id,
        state=one.state,
        config=one.executor__config or {},
    )


def _owner_teams(stored: Collection[StoredExecution]) -> set[tuple[int, int]]:
    """Return (owner, team) for every session owner who is active and more than a viewer in that team."""
    owners = {one.session__owner_id for one in stored if one.session__owner_id}
    return {(user, team) for user, team in _MEMBERS.values(owners)}


def _members(owners: Collection[int]) -> Any:
    members = get_user_model().groups.through.objects.filter(user_id__in=owners, user__is_active=True)
    viewers = TeamRole.objects.filter(user=OuterRef("user_id"), team=OuterRef("group_id"), role=TeamRole.Role.VIEWER)
    return members.exclude(Exists(viewers)).values_list("user_id", "group_id")


_MEMBERS: Final = KeyedQuery(_members, NUMBER_PLACEHOLDER)


def _resume_rows(row: Candidate, *, task_over: bool) -> SessionRows:
    one = row.stored
    return SessionRows(
        state=one.session__state,
        error_code=one.session__error_code,
        launch_id=one.session__launch_id,
        desired_state=one.session__desired_state,
        stopped_by_user=one.session__stopped_by_user,
        context_mismatch=one.session__context_mismatch,
        task_over=task_over,
        profile=row.profile,
        has_agent=one.session__has_agent,
        metadata=one.session__metadata,
        executor_status=one.status,
        executor_error_code=one.error_code,
        last_seen_at=one.last_seen_at,
        probed_supports_resume=one.supports_session_resume,
        has_token=one.has_token,
        has_rejected_token=one.has_rejected_token,
        workspace_path=one.workspace_path,
    )


def sweep_facts(
    row: Candidate,
    seen: Observation,
    *,
    boot: bool,
    unknown_before: bool,
    attached: bool,
    now: datetime,
    admitted: bool = False,
) -> SweepFacts:
    """Build the facts from which ``decide`` derives the decision, without further queries."""
    one, place = row.stored, row.place
    archived = one.session__task__archived_at is not None
    closed = one.session__task__state in (TaskState.DONE, TaskState.CANCELLED)
    known = _resume_rows(row, task_over=archived or closed)
    started_at = row.start_created_at
    if started_at is None and one.status == ExecutorStatus.STARTING:
        started_at = one.updated_at
    return SweepFacts(
        session_id=place.session_id,
        task_id=place.task_id,
        runtime=one.runtime,
        session_state=SessionState(one.session__state),
        executor_status=ExecutorStatus(one.status),
        executor_error_code=one.error_code,
        desired_state=DesiredState(one.session__desired_state),
        work_state=WorkState(one.session__work_state),
        task_archived=archived,
        task_closed=closed,
        policy=Policy(row.policy),
        assessment=assess(resume_facts(known, ever_prompted=row.ever_prompted, workspace=seen.workspace), now),
        workspace=seen.workspace,
        workspace_reason=seen.workspace_reason,
        has_open_run=row.open_run,
        has_queued_prompts=row.queued,
        known_launch_id=one.session__launch_id or None,
        started_at=started_at,
        start_in_flight=row.start_created_at is not None,
        foreign_lease=row.foreign,
        boot=boot,
        unknown_before=unknown_before,
        asleep=one.status == ExecutorStatus.STOPPED and one.status_reason in (IDLE_REASON, DRAINED_REASON),
        attached=attached,
        attempts=one.session__start_attempts,
        next_restart_at=one.session__next_restart_at,
        owner_in_team=row.owner_in_team,
        max_attempts=settings.KANDEV_MAX_RESTARTS,
        start_timeout=timedelta(seconds=settings.KANDEV_START_TIMEOUT),
        workspace_only=bool(one.session__metadata.get("workspace_only")),
        has_agent=one.session__has_agent,
        start_rank=one.session__start_rank,
        admitted=admitted,
    )
