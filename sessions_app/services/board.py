"""The board: tasks that match a filter, in a column for each state, with their sessions.

The number of queries does not depend on the number of tasks.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Count, Exists, OuterRef, Prefetch, Q, QuerySet, Subquery

from sessions_app.domain.attention import AttentionKind
from sessions_app.domain.restart_rules import WaitReason
from sessions_app.domain.situation_facts import SituationFacts
from sessions_app.domain.states import PromptKind, PromptState, RequestKind, RunState, TaskState
from sessions_app.domain.wait_tokens import WaitKind
from sessions_app.models import QUEUED_FOR_CAPACITY, Intent, IntentKind, Prompt, Supervisor, Task, TaskSession
from sessions_app.services import attention
from sessions_app.services.assessment import is_running
from sessions_app.services.attention import has_unseen
from sessions_app.services.catalogue import SECRET_FIELDS
from sessions_app.services.status import CLAIMS_TO_RUN, SessionRunState, is_asleep, load_run_states
from sessions_app.workflows.models import WorkflowRun

TASKS_PER_COLUMN: Final = 50
"""Maximum number of tasks of one state on the board; the rest are only counted."""
PERMANENT_COLUMNS: Final = (TaskState.TODO, TaskState.IN_PROGRESS, TaskState.REVIEW, TaskState.DONE)


@dataclass(frozen=True, slots=True)
class BoardFilter:
    """Criteria for tasks; the default matches everything that is not archived."""

    text: str = ""
    """Searched in title, description, branch and agent profile name."""
    team: int | None = None
    agent: uuid.UUID | None = None
    """Id of an agent profile."""
    state: str = ""
    mine: bool = False
    """Created by the user, or with a session that the user owns."""
    needs: bool = False
    """With a session that needs a person."""
    archived: bool = False
    """Only archived tasks, which are left out otherwise."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as the board shows it."""

    session: TaskSession
    derived: str
    facts: SituationFacts


@dataclass(frozen=True, slots=True)
class BoardColumn:
    """The tasks of one state."""

    state: TaskState
    count: int
    tasks: Sequence[tuple[Task, Sequence[SessionRow]]]


def filter_tasks(user: Any, wanted: BoardFilter) -> QuerySet[Task]:
    """Return the matching tasks of the user's teams, newest first."""
    tasks: QuerySet[Task] = Task.objects.visible_to(user).filter(archived_at__isnull=not wanted.archived)
    sessions = TaskSession.objects.filter(task=OuterRef("pk"))
    if wanted.text:
        named = Q(agent_profile__name__icontains=wanted.text) | Q(worktree_branch__icontains=wanted.text)
        words = Q(title__icontains=wanted.text) | Q(description__icontains=wanted.text)
        # Not by a subquery for each task: this one runs once.
        tasks = tasks.filter(words | Q(id__in=TaskSession.objects.filter(named).values("task")))
    if wanted.team is not None:
        tasks = tasks.filter(team=wanted.team)
    if wanted.agent is not None:
        tasks = tasks.filter(Exists(sessions.filter(agent_profile=wanted.agent)))
    if wanted.state:
        tasks = tasks.filter(state=wanted.state)
    if wanted.mine:
        tasks = tasks.filter(Q(created_by=user) | Q(Exists(sessions.filter(owner=user))))
    if wanted.needs:
        tasks = tasks.filter(Exists(sessions.filter(attention.needs_person())))
    return tasks


def board_columns(user: Any, wanted: BoardFilter = BoardFilter()) -> list[BoardColumn]:
    """Return the columns of the board.

    A state outside ``PERMANENT_COLUMNS`` has a column only if it has tasks, or if the filter names it.
    """
    tasks = filter_tasks(user, wanted)
    counts: dict[str, int] = dict(tasks.order_by().values_list("state").annotate(Count("id")))
    shown = [state for state in TaskState if _is_shown(state, wanted, counts)]
    found = _newest_of_each(tasks, {state: counts.get(state, 0) for state in shown}, user)
    rows = session_rows([session for tasks_ in found.values() for task in tasks_ for session in task.sessions.all()])
    return [
        BoardColumn(
            state,
            counts.get(state, 0),
            [(task, [rows[session.id] for session in task.sessions.all()]) for task in tasks_],
        )
        for state, tasks_ in found.items()
    ]


def _newest_of_each(tasks: QuerySet[Task], counts: Mapping[TaskState, int], user: Any) -> dict[TaskState, list[Task]]:
    """Return the newest tasks of each state in ``counts``, at most ``TASKS_PER_COLUMN``.

    Their ids first, which the database reads from an index in this order: with the joins of the second query, it would
    sort all tasks of the state.
    """
    ids = [
        key
        for state, count in counts.items()
        if count
        for key in tasks.filter(state=state)
        .values_list("id", flat=True)
        .order_by("-created_at", "id")[:TASKS_PER_COLUMN]
    ]
    found: dict[TaskState, list[Task]] = {state: [] for state in counts}
    for task in _with_sessions(Task.objects.filter(id__in=ids), user).order_by("-created_at", "id"):
        # A task that has moved since its id was read is shown where it is now, if that is shown.
        found.get(TaskState(task.state), []).append(task)
    return found


def _is_shown(state: TaskState, wanted: BoardFilter, counts: Mapping[str, int]) -> bool:
    if wanted.state:
        return wanted.state == state
    return state in PERMANENT_COLUMNS or bool(counts.get(state))


def _with_sessions(tasks: QuerySet[Task], user: Any) -> QuerySet[Task]:
    """Add sessions and, as ``run_id``, the workflow run that the task was created for."""
    sessions = TaskSession.objects.select_related("agent_profile").defer(*SECRET_FIELDS)
    run = Subquery(WorkflowRun.objects.filter(task=OuterRef("pk")).values("id")[:1])
    found = tasks.select_related("repository", "team").annotate(run_id=run)
    return found.prefetch_related(Prefetch("sessions", annotate_needs(sessions, user)))


def annotate_needs(rows: QuerySet[TaskSession], user: Any) -> QuerySet[TaskSession]:
    """Annotate sessions with what a person has to do about them, and with open requests."""
    starts = Intent.objects.filter(session=OuterRef("pk"), kind=IntentKind.START, done_at=None)
    return rows.annotate(
        asks=attention.awaits_answer(kind=RequestKind.PERMISSION),
        questions=attention.awaits_answer(kind=RequestKind.QUESTION),
        doubts=attention.has_held_prompt(),
        cut_short=attention.has_interrupted_prompt(),
        overdue=attention.has_overdue_prompt(),
        raised=attention.has_open_item(),
        memory=has_unseen(user, AttentionKind.RECEIPT),
        looks=has_unseen(user, AttentionKind.IDLE),
        is_start_ordered=Exists(starts),
        waits_for_capacity=Exists(starts.filter(**{f"payload__{QUEUED_FOR_CAPACITY}": True})),
        is_retrying=Exists(
            Prompt.objects.filter(session=OuterRef("pk"), kind=PromptKind.RETRY, state=PromptState.QUEUED)
        ),
    )


def session_rows(sessions: Sequence[TaskSession]) -> dict[uuid.UUID, SessionRow]:
    """Return the rows of sessions from ``annotate_needs``, by id; a constant number of queries."""
    states = load_run_states(sessions)
    has_swept = Supervisor.objects.alive().filter(swept_at__isnull=False).exists()
    return {session.id: SessionRow(session, *_describe(session, states[session.id], has_swept)) for session in sessions}


def _describe(session: Any, state: SessionRunState, has_swept: bool) -> tuple[str, SituationFacts]:
    """Return the derived status and the facts that lists know, from a session of ``annotate_needs``."""
    run, execution = state.run, state.execution
    facts = SituationFacts(
        session_state=session.state,
        desired_state=session.desired_state,
        work_state=session.work_state,
        agent_running=is_running(session, execution),
        has_agent=session.has_agent,
        task_end=session.task.end,
        error_code=session.error_code,
        recovering=execution is not None and execution.status in CLAIMS_TO_RUN and not has_swept,
        starting=session.is_start_ordered,
        # Lists only say that the start waits. The reason and the position would take a query for each session.
        start_reason=WaitReason.TURN if session.start_rank is not None or session.waits_for_capacity else "",
        asleep=is_asleep(execution),
        pending_permissions=int(session.asks),
        pending_questions=int(session.questions),
        waits_outside=run is not None and run.state == RunState.WAITING and run.wait_kind != WaitKind.PERMISSION,
        next_restart_at=session.next_restart_at,
        retrying=session.is_retrying,
        last_run_state=run.state if run else "",
        last_run_reason=run.reason if run else "",
    )
    return str(state.derived), facts
