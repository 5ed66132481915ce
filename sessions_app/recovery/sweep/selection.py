"""Which executions a sweep checks, the columns it needs, and the corrupt rows that it reports and skips."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db.models import BooleanField, Exists, ExpressionWrapper, F, OuterRef, Q, QuerySet

from executors_app.models import ExecutorRunning
from executors_app.orm import FEW, KeyedQuery
from executors_app.wire.executions import ExecutorStatus
from sessions_app.kernel.rules.states import DesiredState, SessionState
from sessions_app.models import TaskSession
from sessions_app.recovery.services.assessment import find_flaws, flaws_sentence

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
    asleep = Q(status=ExecutorStatus.STOPPED, status_reason__in=("idle", "new"))
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
    said: str


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
        said=flaws_sentence(found),
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
