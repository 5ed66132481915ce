"""What a sweep reads: sessions that claim to run or should, in a constant number of queries (design 7, step 1)."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db.models import BooleanField, ExpressionWrapper, F, Q, QuerySet

from executors_app.domain import ExecutionFacts, ExecutorStatus, Observation
from executors_app.models import AgentProfile, ExecutorRunning
from sessions_app.domain.recovery import Policy, SweepFacts
from sessions_app.domain.resumability import assess
from sessions_app.domain.states import (
    OPEN_RUN_STATES,
    DesiredState,
    PromptState,
    SessionState,
    TaskState,
    WorkState,
)
from sessions_app.models import Intent, Prompt, Repository, Run
from sessions_app.services.assessment import Known, resume_facts
from sessions_app.supervisor import leases

CLAIMS = (ExecutorStatus.STARTING, ExecutorStatus.READY)
SHOULD_RUN = (SessionState.STARTING, SessionState.RUNNING, SessionState.WAITING_FOR_INPUT, SessionState.ERROR)
SETTLED_ERRORS = ("worktree_missing",)
"""Errors that no look can cure: a user's *try again* looks once more."""
KEPT_SECRETS: Final = {"has_token": "resume_token", "has_rejected_token": "rejected_resume_token"}


class Stored(NamedTuple):
    """The columns that a sweep needs, by their names in the query; plain values cost half of what models do."""

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
    state: dict[str, Any]
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
    session__desired_state: str
    session__work_state: str
    session__policy: str
    session__metadata: dict[str, Any]
    session__launch_id: str
    session__stopped_by_user: bool
    session__context_mismatch: bool
    session__start_attempts: int
    session__next_restart_at: datetime | None
    session__agent_profile_id: uuid.UUID
    session__owner_id: int | None
    session__task__title: str
    session__task__state: str
    session__task__archived_at: datetime | None
    session__task__team_id: int
    session__task__base_branch: str
    session__task__repository_id: uuid.UUID | None


@dataclass(frozen=True, slots=True)
class Row:
    """One session with its execution, and the places and questions that go with it."""

    stored: Stored
    place: ExecutionFacts
    profile: AgentProfile
    foreign: bool
    start_created_at: datetime | None
    """Of the open start order, if there is one."""
    queued: bool
    open_run: bool
    ever_prompted: bool
    owner_in_team: bool


def select(sessions: Collection[uuid.UUID] = (), runtime: str = "") -> QuerySet[ExecutorRunning]:
    """The present executions to look at; cost follows what claims to run, not history."""
    claims = Q(status__in=CLAIMS)
    unreachable = Q(status=ExecutorStatus.ERROR) & ~Q(error_code__in=SETTLED_ERRORS)
    should = Q(session__desired_state=DesiredState.RUNNING, session__state__in=SHOULD_RUN)
    asleep = Q(status=ExecutorStatus.STOPPED, status_reason__in=("idle", "new"))
    wanted = claims | (should & (unreachable | Q(status=ExecutorStatus.STOPPED)) & ~asleep)
    rows = ExecutorRunning.objects.filter(wanted, session__agent_execution_id=F("id"))
    if sessions:
        rows = rows.filter(session_id__in=sessions)
    if runtime:
        rows = rows.filter(session__executor__runtime=runtime)
    return rows.order_by("session_id")


def _stored(rows: QuerySet[ExecutorRunning]) -> list[Stored]:
    """Whether there is a token is all that a sweep wants of it: none is decrypted."""
    kept = {name: ExpressionWrapper(~Q(**{column: ""}), BooleanField()) for name, column in KEPT_SECRETS.items()}
    return list(map(Stored._make, rows.annotate(**kept).values_list(*Stored._fields)))


def read(me: str, sessions: Collection[uuid.UUID] = (), runtime: str = "") -> list[Row]:
    """Everything the decisions need of the database; a constant number of queries."""
    stored = _stored(select(sessions, runtime))
    ids = [one.session_id for one in stored]
    starts = Intent.objects.filter(session_id__in=ids, done_at=None, kind="start")
    in_flight = dict(starts.values_list("session_id", "created_at"))
    queued = set(
        Prompt.objects.filter(session_id__in=ids, state=PromptState.QUEUED).values_list("session_id", flat=True)
    )
    runs = list(Run.objects.filter(session_id__in=ids).values_list("session_id", "state").distinct())
    prompted = {session_id for session_id, _ in runs}
    turning = {session_id for session_id, state in runs if state in OPEN_RUN_STATES}
    profiles = AgentProfile.objects.in_bulk({one.session__agent_profile_id for one in stored})
    paths = _paths(stored)
    teams, foreign = _teams(stored), _foreign(stored, me)
    return [
        Row(
            stored=one,
            place=_place(one, paths),
            profile=profiles[one.session__agent_profile_id],
            foreign=one.id in foreign,
            start_created_at=in_flight.get(one.session_id),
            queued=one.session_id in queued,
            open_run=one.session_id in turning,
            ever_prompted=one.session_id in prompted,
            owner_in_team=one.session__owner_id is None or (one.session__owner_id, one.session__task__team_id) in teams,
        )
        for one in stored
    ]


def _paths(stored: Collection[Stored]) -> Mapping[uuid.UUID | None, str]:
    repositories = {one.session__task__repository_id for one in stored if one.session__task__repository_id}
    return dict(Repository.objects.filter(id__in=repositories).values_list("id", "path"))


def _place(one: Stored, paths: Mapping[uuid.UUID | None, str]) -> ExecutionFacts:
    """As the runtimes and the client need it; a token that cannot be decrypted is none."""
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
        repository_path=paths.get(one.session__task__repository_id, ""),
        base_branch=one.session__task__base_branch,
        workspace_path=one.workspace_path,
        worktree_path=one.worktree_path,
        worktree_branch=one.worktree_branch,
        state=one.state,
    )


def _teams(stored: Collection[Stored]) -> set[tuple[int, int]]:
    """Owner and team of every owner who may still log in."""
    owners = {one.session__owner_id for one in stored if one.session__owner_id}
    through = get_user_model().groups.through
    return set(through.objects.filter(user_id__in=owners, user__is_active=True).values_list("user_id", "group_id"))


def _foreign(stored: Collection[Stored], me: str) -> set[uuid.UUID]:
    """Executions whose lease another living supervisor holds."""
    now = leases.database_now()
    dead: dict[str, bool] = {}
    held = set()
    for one in stored:
        fresh = one.lease_expires_at is not None and one.lease_expires_at > now
        if one.owner in ("", me) or not fresh:
            continue
        if one.owner not in dead:
            dead[one.owner] = leases.is_dead(one.owner)
        if not dead[one.owner]:
            held.add(one.id)
    return held


def _known(row: Row, *, task_over: bool) -> Known:
    one = row.stored
    return Known(
        state=one.session__state,
        error_code=one.session__error_code,
        launch_id=one.session__launch_id,
        desired_state=one.session__desired_state,
        stopped_by_user=one.session__stopped_by_user,
        context_mismatch=one.session__context_mismatch,
        task_over=task_over,
        profile=row.profile,
        executor_status=one.status,
        executor_error_code=one.error_code,
        last_seen_at=one.last_seen_at,
        probed_supports_resume=one.supports_session_resume,
        has_token=one.has_token,
        has_rejected_token=one.has_rejected_token,
    )


def facts(
    row: Row, seen: Observation, *, boot: bool, unknown_before: bool, attached: bool, now: datetime
) -> SweepFacts:
    """The facts of one row for the pure decision."""
    one, place = row.stored, row.place
    archived = one.session__task__archived_at is not None
    closed = one.session__task__state in (TaskState.DONE, TaskState.CANCELLED)
    known = _known(row, task_over=archived or closed)
    starting = one.status == ExecutorStatus.STARTING
    return SweepFacts(
        session_id=place.session_id,
        task_id=place.task_id,
        execution_id=place.id,
        runtime=one.runtime,
        session_state=SessionState(one.session__state),
        executor_status=ExecutorStatus(one.status),
        executor_error_code=one.error_code,
        desired_state=DesiredState(one.session__desired_state),
        work_state=WorkState(one.session__work_state),
        task_archived=archived,
        task_closed=closed,
        policy=Policy(one.session__policy),
        assessment=assess(resume_facts(known, ever_prompted=row.ever_prompted, workspace=seen.workspace), now),
        workspace=seen.workspace,
        workspace_reason=seen.workspace_reason,
        has_open_run=row.open_run,
        has_queued_prompts=row.queued,
        known_launch_id=one.session__launch_id or None,
        started_at=row.start_created_at or (one.updated_at if starting else None),
        start_in_flight=row.start_created_at is not None,
        foreign_lease=row.foreign,
        boot=boot,
        unknown_before=unknown_before,
        asleep=one.status == ExecutorStatus.STOPPED and one.status_reason == "idle",
        attached=attached,
        attempts=one.session__start_attempts,
        next_restart_at=one.session__next_restart_at,
        owner_in_team=row.owner_in_team,
        max_attempts=settings.KANDEV_MAX_RESTARTS,
        start_timeout=timedelta(seconds=settings.KANDEV_START_TIMEOUT),
        workspace_only=bool(one.session__metadata.get("workspace_only")),
    )
