"""What the board shows: the tasks that fit a filter, under their states, each with its sessions.

The number of queries does not depend on the number of tasks.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Count, Exists, OuterRef, Prefetch, Q, QuerySet, Subquery

from executors_app.domain import ExecutorStatus
from executors_app.models import ExecutorRunning
from sessions_app.domain.attention import AttentionKind
from sessions_app.domain.states import TaskState
from sessions_app.models import Supervisor, Task, TaskSession
from sessions_app.services import attention_filters
from sessions_app.services.attention import has_unseen
from sessions_app.services.catalogue import SECRET_FIELDS
from sessions_app.services.status import derived_statuses
from sessions_app.workflows.models import WorkflowRun

TASKS_PER_COLUMN: Final = 50
"""Tasks of one state on the board; the rest is counted."""
PERMANENT_COLUMNS: Final = (TaskState.TODO, TaskState.IN_PROGRESS, TaskState.REVIEW, TaskState.DONE)


@dataclass(frozen=True, slots=True)
class BoardFilter:
    """What is looked for; nothing: everything."""

    text: str = ""
    """In title, description, branch or name of the agent."""
    team: int | None = None
    agent: uuid.UUID | None = None
    """An agent profile."""
    state: str = ""
    mine: bool = False
    """Made by the user, or with a session of the user's."""
    needs: bool = False
    """With a session that a person has to look at."""
    archived: bool = False
    """Only what is archived, which is left out otherwise."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as the board tells it."""

    session: TaskSession
    derived: str
    looks_after: bool
    """It claims to run, and since the restart nobody has looked yet."""


@dataclass(frozen=True, slots=True)
class BoardColumn:
    """The tasks of one state."""

    state: TaskState
    count: int
    tasks: Sequence[tuple[Task, Sequence[SessionRow]]]


def filter_tasks(user: Any, wanted: BoardFilter) -> QuerySet[Task]:
    """The tasks of the user's teams that fit, newest first."""
    tasks: QuerySet[Task] = Task.objects.visible_to(user).filter(archived_at__isnull=not wanted.archived)
    sessions = TaskSession.objects.filter(task=OuterRef("pk"))
    if wanted.text:
        named = Q(agent_profile__name__icontains=wanted.text) | Q(worktree_branch__icontains=wanted.text)
        words = Q(title__icontains=wanted.text) | Q(description__icontains=wanted.text)
        tasks = tasks.filter(words | Q(Exists(sessions.filter(named))))
    if wanted.team is not None:
        tasks = tasks.filter(team=wanted.team)
    if wanted.agent is not None:
        tasks = tasks.filter(Exists(sessions.filter(agent_profile=wanted.agent)))
    if wanted.state:
        tasks = tasks.filter(state=wanted.state)
    if wanted.mine:
        tasks = tasks.filter(Q(created_by=user) | Q(Exists(sessions.filter(owner=user))))
    if wanted.needs:
        tasks = tasks.filter(Exists(sessions.filter(attention_filters.needs_person())))
    return tasks


def board_columns(user: Any, wanted: BoardFilter = BoardFilter()) -> list[BoardColumn]:
    """The columns of the board; a state that is rare is there when it is asked for, or has tasks."""
    tasks = filter_tasks(user, wanted)
    counts: dict[str, int] = dict(tasks.order_by().values_list("state").annotate(Count("id")))
    shown = [state for state in TaskState if _is_shown(state, wanted, counts)]
    found = {state: list(_with_sessions(tasks.filter(state=state), user)[:TASKS_PER_COLUMN]) for state in shown}
    sessions = [one for tasks_ in found.values() for task in tasks_ for one in task.sessions.all()]
    rows = session_rows(sessions)
    return [
        BoardColumn(
            state, counts.get(state, 0), [(task, [rows[one.id] for one in task.sessions.all()]) for task in tasks_]
        )
        for state, tasks_ in found.items()
    ]


def _is_shown(state: TaskState, wanted: BoardFilter, counts: Mapping[str, int]) -> bool:
    if wanted.state:
        return wanted.state == state
    return state in PERMANENT_COLUMNS or bool(counts.get(state))


def _with_sessions(tasks: QuerySet[Task], user: Any) -> QuerySet[Task]:
    """With their sessions, and the workflow run that a task is for as ``run_id``."""
    sessions = TaskSession.objects.select_related("agent_profile").defer(*SECRET_FIELDS)
    run = Subquery(WorkflowRun.objects.filter(task=OuterRef("pk")).values("id")[:1])
    found = tasks.select_related("repository", "team").annotate(run_id=run)
    return found.prefetch_related(Prefetch("sessions", annotate_needs(sessions, user)))


def annotate_needs(rows: QuerySet[TaskSession], user: Any) -> QuerySet[TaskSession]:
    """Sessions with what a person has to do about them, a mark for each of ``services.needs``, and to look at."""
    return rows.annotate(
        asks=attention_filters.awaits_permission(),
        doubts=attention_filters.has_held_prompt(),
        cut_short=attention_filters.has_interrupted_prompt(),
        overdue=attention_filters.has_overdue_prompt(),
        raised=attention_filters.has_open_item(),
        memory=has_unseen(user, AttentionKind.RECEIPT),
        looks=has_unseen(user, AttentionKind.IDLE),
    )


def session_rows(sessions: Sequence[TaskSession]) -> dict[uuid.UUID, SessionRow]:
    """The rows of these sessions (of ``with_marks``), by id."""
    derived = derived_statuses(sessions)
    unsure = _load_claiming(sessions) if not _has_been_swept() else frozenset()
    return {one.id: SessionRow(one, str(derived[one.id]), one.agent_execution_id in unsure) for one in sessions}


def _has_been_swept() -> bool:
    return Supervisor.objects.alive().filter(swept_at__isnull=False).exists()


def _load_claiming(sessions: Sequence[TaskSession]) -> frozenset[uuid.UUID]:
    claims = (ExecutorStatus.STARTING, ExecutorStatus.READY)
    ids = [one.agent_execution_id for one in sessions if one.agent_execution_id]
    return frozenset(ExecutorRunning.objects.filter(id__in=ids, status__in=claims).values_list("id", flat=True))
