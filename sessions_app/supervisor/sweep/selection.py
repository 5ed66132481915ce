"""Which executions a sweep looks at, and the columns of them that it needs (design 7, step 1)."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db.models import BooleanField, ExpressionWrapper, F, Q, QuerySet

from executors_app.domain import ExecutorStatus
from executors_app.models import ExecutorRunning
from sessions_app.domain.states import DesiredState, SessionState

CLAIMS = (ExecutorStatus.STARTING, ExecutorStatus.READY)
NEED_NOT_RUN = (SessionState.CREATED, SessionState.COMPLETED, SessionState.FAILED, SessionState.CANCELLED)
SETTLED_ERRORS = ("worktree_missing",)
"""Errors that no look can cure: a user's *try again* looks once more."""
KEPT_SECRETS: Final = {"has_token": "resume_token", "has_rejected_token": "rejected_resume_token"}
UNREADABLE = (ValueError, TypeError, AttributeError, OverflowError)
"""What a column raises whose text is no value of its kind."""


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


def select(sessions: Collection[uuid.UUID] = (), runtime: str = "") -> QuerySet[ExecutorRunning]:
    """The present executions to look at; cost follows what claims to run, not history."""
    claims = Q(status__in=CLAIMS)
    unreachable = Q(status=ExecutorStatus.ERROR) & ~Q(error_code__in=SETTLED_ERRORS)
    should = Q(session__desired_state=DesiredState.RUNNING) & ~Q(session__state__in=NEED_NOT_RUN)
    asleep = Q(status=ExecutorStatus.STOPPED, status_reason__in=("idle", "new"))
    wanted = claims | (should & (unreachable | Q(status=ExecutorStatus.STOPPED)) & ~asleep)
    rows = ExecutorRunning.objects.filter(wanted, session__agent_execution_id=F("id"))
    if sessions:
        rows = rows.filter(session_id__in=sessions)
    if runtime:
        rows = rows.filter(session__executor__runtime=runtime)
    return rows.order_by("session_id")


def stored(rows: QuerySet[ExecutorRunning]) -> tuple[list[Stored], dict[uuid.UUID, Exception]]:
    """The rows, and by session those that cannot even be read.

    Whether there is a token is all that a sweep wants of it: none is decrypted.
    """
    kept = {name: ExpressionWrapper(~Q(**{column: ""}), BooleanField()) for name, column in KEPT_SECRETS.items()}
    columns = rows.annotate(**kept).values_list(*Stored._fields)
    try:
        return list(map(Stored._make, columns)), {}
    except UNREADABLE:
        return _one_by_one(columns)


def _one_by_one(columns: Any) -> tuple[list[Stored], dict[uuid.UUID, Exception]]:
    """One row holds what is no value at all: the others are read without it."""
    found: list[Stored] = []
    unreadable: dict[uuid.UUID, Exception] = {}
    for session_id in list(columns.values_list("session_id", flat=True)):
        try:
            found.append(Stored._make(columns.get(session_id=session_id)))
        except UNREADABLE as error:
            unreadable[session_id] = error
    return found, unreadable
