"""What a sweep reads: sessions that claim to run or should, in a constant number of queries (design 7, step 1)."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db.models import F, Q, QuerySet

from executors_app.domain import ExecutionFacts, ExecutorStatus, Observation
from executors_app.models import ExecutorRunning
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
from sessions_app.models import Intent, Prompt, Run, TaskSession
from sessions_app.services.assessment import resume_facts
from sessions_app.supervisor import leases
from sessions_app.supervisor.rows import facts_of

CLAIMS = (ExecutorStatus.STARTING, ExecutorStatus.READY)
SHOULD_RUN = (SessionState.STARTING, SessionState.RUNNING, SessionState.WAITING_FOR_INPUT, SessionState.ERROR)
SHARED = ("session__task__repository", "session__agent_profile", "session__owner")
"""Few rows for many sessions: each is read, and its secrets are opened, once."""
SETTLED_ERRORS = ("worktree_missing",)
"""Errors that no look can cure: a user's *try again* looks once more."""


@dataclass(frozen=True, slots=True)
class Row:
    """One session with its execution, and the places and questions that go with it."""

    session: TaskSession
    execution: ExecutorRunning
    place: ExecutionFacts
    foreign: bool
    start_created_at: datetime | None
    """Of the open start order, if there is one."""
    queued: bool
    open_run: bool
    ever_prompted: bool
    owner_in_team: bool


def select(sessions: Collection[uuid.UUID] = (), runtime: str = "") -> QuerySet[ExecutorRunning]:
    """The present executions to look at, with their sessions; cost follows what claims to run, not history."""
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
    return rows.select_related("session__task").prefetch_related(*SHARED).order_by("session_id")


def read(me: str, sessions: Collection[uuid.UUID] = (), runtime: str = "") -> list[Row]:
    """Everything the decisions need of the database; a constant number of queries."""
    executions = list(select(sessions, runtime))
    ids = [execution.session_id for execution in executions]
    starts = Intent.objects.filter(session_id__in=ids, done_at=None, kind="start")
    in_flight = dict(starts.values_list("session_id", "created_at"))
    queued = set(
        Prompt.objects.filter(session_id__in=ids, state=PromptState.QUEUED).values_list("session_id", flat=True)
    )
    runs = list(Run.objects.filter(session_id__in=ids).values_list("session_id", "state").distinct())
    prompted = {session_id for session_id, _ in runs}
    turning = {session_id for session_id, state in runs if state in OPEN_RUN_STATES}
    teams = _teams([execution.session for execution in executions])
    foreign = _foreign(executions, me)
    rows = []
    for execution in executions:
        session = execution.session
        session.__dict__["present_execution"] = execution
        owner = session.owner
        in_team = owner is None or (owner.is_active and (owner.id, session.task.team_id) in teams)
        rows.append(
            Row(
                session=session,
                execution=execution,
                place=facts_of(execution, session),
                foreign=execution.id in foreign,
                start_created_at=in_flight.get(session.id),
                queued=session.id in queued,
                open_run=session.id in turning,
                ever_prompted=session.id in prompted,
                owner_in_team=in_team,
            )
        )
    return rows


def _teams(sessions: Collection[TaskSession]) -> set[tuple[int, int]]:
    owners = {session.owner_id for session in sessions if session.owner_id}
    through = get_user_model().groups.through
    return set(through.objects.filter(user_id__in=owners).values_list("user_id", "group_id"))


def _foreign(executions: Collection[ExecutorRunning], me: str) -> set[uuid.UUID]:
    """Executions whose lease another living supervisor holds."""
    now = leases.database_now()
    dead: dict[str, bool] = {}
    held = set()
    for execution in executions:
        fresh = execution.lease_expires_at is not None and execution.lease_expires_at > now
        if execution.owner in ("", me) or not fresh:
            continue
        if execution.owner not in dead:
            dead[execution.owner] = leases.is_dead(execution.owner)
        if not dead[execution.owner]:
            held.add(execution.id)
    return held


def facts(
    row: Row, seen: Observation, *, boot: bool, unknown_before: bool, attached: bool, now: datetime
) -> SweepFacts:
    """The facts of one row for the pure decision."""
    session, execution = row.session, row.execution
    resumable = resume_facts(session, workspace=seen.workspace, ever_prompted=row.ever_prompted)
    starting = execution.status == ExecutorStatus.STARTING
    return SweepFacts(
        session_id=str(session.id),
        task_id=str(session.task_id),
        execution_id=str(execution.id),
        runtime=execution.runtime,
        session_state=SessionState(session.state),
        executor_status=ExecutorStatus(execution.status),
        executor_error_code=execution.error_code,
        desired_state=DesiredState(session.desired_state),
        work_state=WorkState(session.work_state),
        task_archived=session.task.archived_at is not None,
        task_closed=session.task.state in (TaskState.DONE, TaskState.CANCELLED),
        policy=Policy(session.policy),
        assessment=assess(resumable, now),
        workspace=seen.workspace,
        workspace_reason=seen.workspace_reason,
        has_open_run=row.open_run,
        has_queued_prompts=row.queued,
        known_launch_id=session.launch_id or None,
        started_at=row.start_created_at or (execution.updated_at if starting else None),
        start_in_flight=row.start_created_at is not None,
        foreign_lease=row.foreign,
        boot=boot,
        unknown_before=unknown_before,
        asleep=execution.status == ExecutorStatus.STOPPED and execution.status_reason == "idle",
        attached=attached,
        attempts=session.start_attempts,
        next_restart_at=session.next_restart_at,
        owner_in_team=row.owner_in_team,
        max_attempts=settings.KANDEV_MAX_RESTARTS,
        start_timeout=timedelta(seconds=settings.KANDEV_START_TIMEOUT),
        workspace_only=bool(session.metadata.get("workspace_only")),
    )
