"""The board: tasks that match a filter, in a column for each state, with their sessions.

The number of queries does not depend on the number of tasks.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from django.contrib.auth.models import Group, User
from django.db.models import Count, Exists, OuterRef, Prefetch, Q, QuerySet, Subquery, Window
from django.db.models.functions import RowNumber

from executors_app.models import PROFILE_SECRETS, AgentProfile
from sessions_app.attention.services import inbox
from sessions_app.background.services import process_count
from sessions_app.board.services.session_needs import SessionNeeds, load_needs
from sessions_app.hosts.cordons import is_drained
from sessions_app.hosts.supervision import Supervision
from sessions_app.kernel.rules.states import (
    OPEN_RUN_STATES,
    DesiredState,
    RunState,
    TaskState,
    TurnOrigin,
)
from sessions_app.models import Repository, Task, TaskSession
from sessions_app.planning.rules.plans import Priority
from sessions_app.planning.services import NO_PLAN, Plan, is_planned, load_plans
from sessions_app.recovery.rules.resumability import UNREACHABLE
from sessions_app.recovery.services.assessment import is_running
from sessions_app.sessions.rules.situation_facts import SituationFacts
from sessions_app.sessions.services.situations import launch_wait_text
from sessions_app.sessions.services.status import (
    SessionRunState,
    is_asleep,
    is_recovering,
    load_run_states,
    needed_place,
)
from sessions_app.starts.rules.restart_rules import WaitReason
from sessions_app.waits.rules.wait_keys import WaitKind
from sessions_app.workflows.models import WorkflowRun

TASKS_PER_COLUMN: Final = 25
"""Tasks of one state that the board shows at first, and that *Show more* adds; the rest are only counted."""
MAX_TASKS_PER_COLUMN: Final = 500
"""Maximum number of tasks of one state on the board."""
SESSIONS_PER_TASK: Final = 20
"""Maximum number of sessions of one task on the board; the rest are only counted."""
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
    assignee: str = ""
    """User name of who does it."""
    label: str = ""
    priority: Priority | None = None
    """At least this urgent."""
    archived: bool = False
    """Only archived tasks, which are left out otherwise."""
    limits: Mapping[TaskState, int] = field(default_factory=dict)
    """How many tasks of a state are shown, if not ``TASKS_PER_COLUMN``."""

    def limit(self, state: TaskState) -> int:
        """Return how many tasks of a state are shown at most."""
        return self.limits.get(state, TASKS_PER_COLUMN)


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as the board shows it."""

    session: TaskSession
    needs: SessionNeeds
    derived: str
    facts: SituationFacts
    last_turn_at: datetime | None
    """When its newest turn has ended, or else begun; None: it has had none."""

    @property
    def is_count_current(self) -> bool:
        """Whether no turn can have changed the branch since its lines were counted."""
        counted_at = self.session.branch_counted_at
        is_open = self.facts.last_run_state in OPEN_RUN_STATES
        return counted_at is not None and not is_open and (self.last_turn_at is None or self.last_turn_at < counted_at)


@dataclass(frozen=True, slots=True)
class BoardTask:
    """A task with its plan, its newest sessions, and the number of all its sessions."""

    task: Task
    plan: Plan
    sessions: Sequence[SessionRow]
    session_count: int
    session_states: Collection[str]
    """The states of all its sessions."""


@dataclass(frozen=True, slots=True)
class BoardColumn:
    """The tasks of one state."""

    state: TaskState
    count: int
    tasks: Sequence[BoardTask]


def filter_tasks(user: User, criteria: BoardFilter) -> QuerySet[Task]:
    """Return the matching tasks of the user's teams, newest first."""
    tasks: QuerySet[Task] = Task.objects.visible_to(user).filter(archived_at__isnull=not criteria.archived)
    sessions = TaskSession.objects.filter(task=OuterRef("pk"))
    if criteria.text:
        named = Q(agent_profile__name__icontains=criteria.text) | Q(worktree_branch__icontains=criteria.text)
        words = Q(title__icontains=criteria.text) | Q(description__icontains=criteria.text)
        # Not by a subquery for each task: this one runs once.
        tasks = tasks.filter(words | Q(id__in=TaskSession.objects.filter(named).values("task")))
    if criteria.team is not None:
        tasks = tasks.filter(team=criteria.team)
    if criteria.agent is not None:
        tasks = tasks.filter(Exists(sessions.filter(agent_profile=criteria.agent)))
    if criteria.state:
        tasks = tasks.filter(state=criteria.state)
    if criteria.mine:
        tasks = tasks.filter(Q(created_by=user) | Q(Exists(sessions.filter(owner=user))))
    tasks = tasks.filter(is_planned(assignee=criteria.assignee, label=criteria.label, priority=criteria.priority))
    if criteria.needs:
        tasks = tasks.filter(Exists(sessions.filter(inbox.needs_person())))
    return tasks


def board_columns(user: User, criteria: BoardFilter = BoardFilter()) -> list[BoardColumn]:
    """Return the columns of the board.

    A state outside ``PERMANENT_COLUMNS`` has a column only if it has tasks, or if the filter names it.
    """
    tasks = filter_tasks(user, criteria)
    counts: dict[str, int] = dict(tasks.order_by().values_list("state").annotate(Count("id")))
    shown = [state for state in TaskState if _is_shown(state, criteria, counts)]
    found = _newest_of_each(tasks, {state: min(counts.get(state, 0), criteria.limit(state)) for state in shown})
    on_board = [task for tasks_ in found.values() for task in tasks_]
    sessions = _newest_sessions(on_board, user)
    plans = load_plans([task.id for task in on_board])
    return [
        BoardColumn(
            state, counts.get(state, 0), [sessions.of_task(task, plans.get(task.id, NO_PLAN)) for task in tasks_]
        )
        for state, tasks_ in found.items()
    ]


def _newest_of_each(tasks: QuerySet[Task], limits: Mapping[TaskState, int]) -> dict[TaskState, list[Task]]:
    """Return the newest tasks of each state in ``limits``, at most as many as it says.

    Their ids first, which the database reads from an index in this order: with the joins of the second query, it would
    sort all tasks of the state.
    """
    ids: list[uuid.UUID] = []
    for state, limit in limits.items():
        if limit:
            newest = tasks.filter(state=state).order_by("-created_at", "id")
            ids += newest.values_list("id", flat=True)[:limit]
    found: dict[TaskState, list[Task]] = {state: [] for state in limits}
    for task in _with_run(Task.objects.filter(id__among=ids)).order_by("-created_at", "id"):
        # A task that has moved since its id was read is shown where it is now, if that is shown.
        found.get(TaskState(task.state), []).append(task)
    return found


def _is_shown(state: TaskState, criteria: BoardFilter, counts: Mapping[str, int]) -> bool:
    if criteria.state:
        return criteria.state == state
    return state in PERMANENT_COLUMNS or bool(counts.get(state))


_TASK_COLUMNS: Final = (
    *("title", "state", "team_id", "repository_id", "created_by_id", "created_at", "archived_at"),
    *("entered_state", "entered_at"),
)
"""What cards show of a task, or derive from."""


def _with_run(tasks: QuerySet[Task]) -> QuerySet[Task]:
    """Add, as ``run_id``, the workflow run that the task was created for.

    Teams, repositories and creators are prefetched: many tasks share a few of them. A description can have a megabyte.
    """
    run = Subquery(WorkflowRun.objects.filter(task=OuterRef("pk")).values("id")[:1])
    parents = (
        Prefetch("repository", Repository.objects.only("name")),
        Prefetch("team", Group.objects.only("name")),
        Prefetch("created_by", User.objects.only("username")),
    )
    return tasks.prefetch_related(*parents).only(*_TASK_COLUMNS).annotate(run_id=run)


@dataclass(frozen=True, slots=True)
class _NewestSessions:
    """The newest sessions of some tasks, and the numbers and states of all their sessions."""

    rows: Mapping[uuid.UUID, Sequence[SessionRow]]
    counts: Mapping[uuid.UUID, int]
    states: Mapping[uuid.UUID, Collection[str]]
    """Of the tasks with more sessions than ``rows`` has."""

    def of_task(self, task: Task, plan: Plan) -> BoardTask:
        rows = self.rows.get(task.id, ())
        states = self.states.get(task.id) or {row.session.state for row in rows}
        return BoardTask(task, plan, rows, self.counts.get(task.id, 0), states)


_SESSION_COLUMNS: Final = (
    "task_id",
    "state",
    "agent_profile_id",
    "agent_execution_id",
    "metadata",
    "has_agent",
    "desired_state",
    "work_state",
    "error_code",
    "next_restart_at",
    "start_rank",
    "stalled_since",
    "launch_id",
    "branch_additions",
    "branch_deletions",
    "branch_counted_at",
    "created_at",
)
"""What cards show of a session, or derive from."""


def _newest_sessions(tasks: Sequence[Task], user: User) -> _NewestSessions:
    """Return the newest sessions of each task, at most ``SESSIONS_PER_TASK``; a constant number of queries.

    Their ids first: with its columns, all sessions would be sorted whole.
    """
    numbered = TaskSession.objects.filter(task__among=[task.id for task in tasks]).annotate(
        place=Window(RowNumber(), partition_by="task", order_by=("-created_at", "id")),
        total=Window(Count("id"), partition_by="task"),
    )
    newest = list(numbered.filter(place__lte=SESSIONS_PER_TASK).order_by().values_list("id", "task", "total"))
    shown = TaskSession.objects.filter(id__among=[session_id for session_id, _, _ in newest])
    profiles = Prefetch("agent_profile", AgentProfile.objects.defer(*PROFILE_SECRETS))
    shown = shown.only(*_SESSION_COLUMNS).prefetch_related(profiles)
    sessions = list(shown.order_by("-created_at", "id"))
    of_board = {task.id: task for task in tasks}
    for session in sessions:
        session.task = of_board[session.task_id]
    described = session_rows(sessions, user)
    rows: dict[uuid.UUID, list[SessionRow]] = {}
    for row in described.values():
        rows.setdefault(row.session.task_id, []).append(row)
    counts = {task_id: total for _, task_id, total in newest}
    truncated = [task_id for task_id, total in counts.items() if total > SESSIONS_PER_TASK]
    return _NewestSessions(rows, counts, _states_of(truncated))


def _states_of(tasks: Sequence[uuid.UUID]) -> dict[uuid.UUID, set[str]]:
    """Return the states that the sessions of each task have; no query for no tasks."""
    states: dict[uuid.UUID, set[str]] = {}
    if tasks:
        found = TaskSession.objects.filter(task__in=tasks).order_by().values_list("task", "state").distinct()
        for task, state in found:
            states.setdefault(task, set()).add(state)
    return states


def session_rows(sessions: Sequence[TaskSession], user: User) -> dict[uuid.UUID, SessionRow]:
    """Return the rows of sessions as ``user`` sees them, by id; a constant number of queries.

    A session that was deleted after it was read has no row.
    """
    needs = load_needs([session.id for session in sessions], user)
    sessions = [session for session in sessions if session.id in needs]
    states = load_run_states(sessions)
    supervision = Supervision()
    places = {session.id: _needed_place(session, states[session.id], needs[session.id]) for session in sessions}
    unattended = supervision.name_unattended(places.values())
    rows = {}
    for session in sessions:
        state = states[session.id]
        last_turn_at = (state.run.ended_at or state.run.started_at) if state.run else None
        unattended_host = unattended.get(places[session.id], "")
        facts = _facts_of(session, needs[session.id], state, supervision, unattended_host)
        rows[session.id] = SessionRow(session, needs[session.id], str(state.derived), facts, last_turn_at)
    return rows


def _needed_place(session: TaskSession, state: SessionRunState, needs: SessionNeeds) -> str:
    return needed_place(session, state.execution, is_start_ordered=needs.is_start_ordered)


def _facts_of(
    session: TaskSession, needs: SessionNeeds, state: SessionRunState, supervision: Supervision, unattended_host: str
) -> SituationFacts:
    """Return the facts that lists know of a session."""
    run, execution = state.run, state.execution
    error_code = UNREACHABLE if unattended_host else session.error_code
    runs = is_running(session, execution)
    start_reason = ""
    waits_for_host = is_drained(execution) and session.desired_state == DesiredState.RUNNING
    if session.start_rank is not None or needs.waits_to_start or waits_for_host:
        # Lists only say that the start waits. The reason and the position would take a query for each session.
        start_reason = WaitReason.TURN
    start_text = launch_wait_text(execution)
    if start_text:
        start_reason = WaitReason.LAUNCH
    last_state, last_reason, works_alone = "", "", False
    if run is not None:
        last_state, last_reason = run.state, run.reason
        works_alone = run.origin == TurnOrigin.AGENT and run.state in OPEN_RUN_STATES
    return SituationFacts(
        session_state=session.state,
        desired_state=session.desired_state,
        work_state=session.work_state,
        agent_running=runs,
        background_process_count=process_count(session, is_running=runs),
        has_agent=session.has_agent,
        task_end=session.task.end,
        error_code=error_code,
        recovering=is_recovering(execution, supervision),
        unattended_host=unattended_host,
        starting=needs.is_start_ordered,
        start_reason=start_reason,
        start_text=start_text,
        asleep=is_asleep(execution),
        pending_permissions=int(needs.asks),
        pending_questions=int(needs.questions),
        waits_outside=run is not None and run.state == RunState.WAITING and run.wait_kind != WaitKind.PERMISSION,
        next_restart_at=session.next_restart_at,
        suspended=needs.suspension_reason is not None,
        suspension_reason=needs.suspension_reason or "",
        over_budget=needs.is_over_budget,
        retrying=needs.is_retrying,
        last_run_state=last_state,
        works_alone=works_alone,
        last_run_reason=last_reason,
    )
