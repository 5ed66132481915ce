"""The board: its filter, its columns, the form for a new task, and actions on many sessions."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.transaction import atomic
from django.http import HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.template.loader import get_template
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString, mark_safe
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from sessions_app.accounts.authorization import may_write_somewhere, writable_teams
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.accounts.team_scope import teams_of
from sessions_app.agents.services.profiles import visible_profiles
from sessions_app.board.forms import TaskCreateForm
from sessions_app.board.rules.ages import age_text
from sessions_app.board.rules.moves import COLUMN_NAMES, MOVE_CHOICES, MOVE_HINTS, possible_moves
from sessions_app.board.services import board as board_service
from sessions_app.board.services.board import (
    MAX_TASKS_PER_COLUMN,
    TASKS_PER_COLUMN,
    BoardColumn,
    BoardFilter,
    BoardTask,
    SessionRow,
)
from sessions_app.board.services.moves import movable
from sessions_app.board.services.tasks import create_session, create_task
from sessions_app.kernel.rules.parsers import parse_number, parse_uuid
from sessions_app.kernel.rules.states import TaskState
from sessions_app.kernel.services.errors import Invalid, SessionsError
from sessions_app.models import Task, TaskSession
from sessions_app.pages.labels import OUTCOME_LABELS, TASK_STATE_LABELS
from sessions_app.pages.shortcuts import READ_METHODS, form_status, part_response
from sessions_app.planning.rules.plans import LABEL_LENGTH, Priority, parse_priority
from sessions_app.planning.services import Plan, labels_of_teams
from sessions_app.recovery.services.restarts import (
    DEMO_TASK,
    LastRestart,
    can_order_restart,
    load_first_steps,
    load_last_restart,
)
from sessions_app.sessions.rules.situation_facts import Label
from sessions_app.sessions.services.intents import request_many
from sessions_app.sessions.views.session_summary import attention_label, session_chips

FILTER_TEXT_LIMIT: Final = 200
FIRST_STEPS_COOKIE: Final = "kandev_first_steps"
"""Set in a browser whose user has hidden the first steps."""
_MOVE_CHOICES: Final = [
    {"to": state.value, "key": f"{state}:{move}", "name": COLUMN_NAMES[state], "hint": MOVE_HINTS[move]}
    for state, move in MOVE_CHOICES
]
STEPS_QUERY: Final = "first-steps"
"""In the query string of the board: show the first steps, also if they are hidden or completed."""
NO_STEPS: Final = (
    f"The first steps need the task “{DEMO_TASK}”, and a Kandev that you run on your own machine. If that task is "
    "done, cancelled or archived, reopen it."
)
_COOKIE_MAX_AGE: Final = 365 * 24 * 3600


def parse_filter(values: Mapping[str, str]) -> BoardFilter:
    """Return the filter in a query string: ``q``, ``team``, ``agent``, ``state``, ``mine``, ``needs``, ``archived``.

    So is the number of tasks to show of a state (``limits``). Values that are not valid are ignored.
    """
    state = values.get("state", "")
    if state not in list(TaskState):
        state = ""
    return BoardFilter(
        text=values.get("q", "").replace("\0", "").strip()[:FILTER_TEXT_LIMIT],
        team=parse_number(values.get("team", ""), 9),
        agent=parse_uuid(values.get("agent", "")),
        state=state,
        assignee=values.get("assignee", "").replace("\0", "")[:FILTER_TEXT_LIMIT],
        label=values.get("label", "").replace("\0", "").strip()[:LABEL_LENGTH],
        priority=parse_priority(values.get("priority", "")),
        mine=bool(values.get("mine")),
        needs=bool(values.get("needs")),
        archived=bool(values.get("archived")),
        limits=_parse_limits(values),
    )


def _parse_limits(values: Mapping[str, str]) -> dict[TaskState, int]:
    """Return how many tasks of a state to show: ``?REVIEW=50`` is what *Show more* requests."""
    limits = {}
    for state in TaskState:
        limit = parse_number(values.get(state.value, ""), 4)
        if limit is not None and limit > TASKS_PER_COLUMN:
            limits[state] = min(limit, MAX_TASKS_PER_COLUMN)
    return limits


def filter_query(criteria: BoardFilter) -> str:
    """Return the query string of a filter (the inverse of ``parse_filter``); empty if it shows everything."""
    values = {
        "q": criteria.text,
        "team": criteria.team,
        "agent": criteria.agent,
        "state": criteria.state,
        "assignee": criteria.assignee,
        "label": criteria.label,
        "priority": criteria.priority and criteria.priority.word,
        "mine": criteria.mine and "1",
        "needs": criteria.needs and "1",
        "archived": criteria.archived and "1",
    }
    values |= {state.value: criteria.limits.get(state) for state in TaskState}
    return urlencode({name: value for name, value in values.items() if value})


def is_filtered(criteria: BoardFilter) -> bool:
    """Return whether the filter leaves any task out."""
    return replace(criteria, limits={}) != BoardFilter()


def filter_context(user: User, criteria: BoardFilter) -> dict[str, Any]:
    """Return the choices of the filter form, and the current filter."""
    return {
        "criteria": criteria,
        "query": filter_query(criteria),
        "teams": list(teams_of(user).order_by("name")),
        "agents": list(visible_profiles(user).only("id", "name")),
        "priorities": [(priority.word, priority.word.capitalize()) for priority in reversed(Priority) if priority],
        "labels": labels_of_teams(teams_of(user)),
        "states": [(state.value, TASK_STATE_LABELS[state].text) for state in TaskState],
        "limits": [(state.value, criteria.limits.get(state, "")) for state in TaskState],
    }


@never_cache
def show_board(request: UserHttpRequest) -> HttpResponse:
    """Show the board. A POST creates a task, with a session that starts at once unless ``only`` is submitted."""
    writable = _writable_ids(request.user)
    reads_only = not writable
    if reads_only and request.method not in READ_METHODS:
        raise PermissionDenied
    form = TaskCreateForm(request.user, request.POST or None, request.FILES or None)
    if request.method == "POST" and form.is_valid():
        try:
            return _create(request, form)
        except SessionsError as error:
            form.add_error(None, error.message)  # on the open form, which keeps what was entered
    criteria = parse_filter(request.GET)
    context = {
        "form": form,
        "reads_only": reads_only,
        "lacking": _missing_prerequisites(form),
        "move_choices": _MOVE_CHOICES,
    }
    context |= _steps_context(request, criteria)
    context |= filter_context(request.user, criteria)
    context |= columns_context(request.user, writable, criteria)
    response = render(request, "board/board.html", context, status=form_status(form))
    if STEPS_QUERY in request.GET:
        _keep_choice(response, "", max_age=0)
    return response


def _steps_context(request: UserHttpRequest, criteria: BoardFilter) -> dict[str, Any]:
    """Return the first steps, unless the board is filtered or they are hidden; ``?first-steps`` shows them again."""
    if is_filtered(criteria):
        return {}
    wanted = STEPS_QUERY in request.GET
    if request.COOKIES.get(FIRST_STEPS_COOKIE) and not wanted:
        return {"has_hidden_steps": can_order_restart(request.user)}
    steps = load_first_steps(request.user, again=wanted)
    if wanted and steps is None:
        messages.info(request, NO_STEPS)
    return {"steps": steps}


@require_POST
def hide_first_steps(request: UserHttpRequest) -> HttpResponse:
    """Hide the first steps in this browser; nothing else changes."""
    response = redirect("board")
    _keep_choice(response, "hidden", max_age=_COOKIE_MAX_AGE)
    return response


def _keep_choice(response: HttpResponse, choice: str, max_age: int) -> None:
    secure = bool(settings.SESSION_COOKIE_SECURE)
    response.set_cookie(FIRST_STEPS_COOKIE, choice, max_age=max_age, secure=secure, httponly=True, samesite="Lax")


def _create(request: UserHttpRequest, form: TaskCreateForm) -> HttpResponse:
    """Create a task and maybe its session: both or none, so that a second try makes no second task."""
    with atomic():
        return redirect(*_create_rows(request, form))


def _create_rows(request: UserHttpRequest, form: TaskCreateForm) -> tuple[Any, ...]:
    """Return the page of what was created, as arguments of ``redirect``."""
    values = form.cleaned_data
    task = create_task(
        request.user,
        {
            "title": values["title"],
            "description": values["description"],
            "team": values["repository"].team,
            "repository": values["repository"],
            "base_branch": values["base_branch"],
        },
    )
    if "only" in request.POST:
        return "task", task.id
    session = create_session(
        request.user,
        task,
        values["agent_profile"],
        values["executor"],
        prompt=form.first_prompt,
        files=values["attachments"],
        executor_pool=form.executor_pool,
    )
    return "session", task.id, session.id


_PREREQUISITES: Final = {
    "repository": ("a repository", "settings-repositories"),
    "agent_profile": ("an agent profile", "settings-profile-new"),
    "executor": ("an executor", "settings-executor-new"),
}
"""By field of the form for a new task: the words, and the page where staff add one."""


def _missing_prerequisites(form: TaskCreateForm) -> list[tuple[str, str]]:
    """Return what staff must still add before anyone can create a task, each with its page."""
    missing = [one for name, one in _PREREQUISITES.items() if not form.offers(name)]
    return [(noun, reverse(page)) for noun, page in missing]


def _writable_ids(user: User) -> set[int]:
    return set(writable_teams(user).values_list("id", flat=True))


def columns_context(user: User, writable: Collection[int], criteria: BoardFilter) -> dict[str, Any]:
    """Return the matching tasks by state, newest first, and the result of the last restart.

    ``writable`` are the ids of the teams in which the user may write.
    """
    columns = board_service.board_columns(user, criteria)
    restart = load_last_restart(user)
    total = sum(column.count for column in columns)
    context = {
        "columns": [
            ColumnCard(column, [card_html(task_card(task, writable)) for task in column.tasks], criteria)
            for column in columns
        ],
        "total": total,
        "has_archived": not total and Task.objects.visible_to(user).exclude(archived_at=None).exists(),
        "filtered": is_filtered(criteria),
    }
    if restart is not None:
        context["last_restart"] = RestartCard(restart)
    return context


@dataclass(frozen=True, slots=True)
class Moment:
    """A time as cards show it. Django's filter ``date`` would take a tenth of the time of a full board."""

    iso: str
    text: str

    @classmethod
    def at(cls, time: datetime) -> Self:
        """Return the texts of a time in UTC."""
        return cls(time.isoformat(), f"{time:%Y-%m-%d %H:%M}")


@dataclass(frozen=True, slots=True)
class SessionLine:
    """A session on the card of its task."""

    id: uuid.UUID
    name: str
    """The name of its agent profile."""
    path: str
    summary: str
    chips: SafeString
    needy: bool
    may_answer: bool
    """Whether it asks something that can be answered."""
    processes: int
    commands: str
    """The commands of its background processes, one on each line."""
    counted_at: Moment | None
    """When the lines of its branch were counted; None: not yet."""
    is_count_current: bool
    is_count_unknown: bool
    """Whether a turn may have changed lines that nobody has counted."""
    additions: int | None
    deletions: int | None


class PlanOfCard(NamedTuple):
    """The plan of a task, with the user name of who does it."""

    priority: Priority
    labels: tuple[str, ...]
    assignee: str


@dataclass(frozen=True, slots=True)
class TaskCard:
    """A task on the board: all that its card shows, so that equal cards have the same HTML."""

    id: uuid.UUID
    title: str
    path: str
    """The address of the task's page."""
    about: str
    """Repository and team."""
    run_id: uuid.UUID | None
    """The workflow run that the task was created for."""
    owner: str
    """Who created it."""
    created_at: Moment
    since: Moment | None
    """Since when it is in its column; None: not known."""
    age: str
    plan: PlanOfCard
    sessions: tuple[SessionLine, ...]
    """Its newest sessions."""
    more: int
    """How many older sessions it has."""
    may_choose: bool
    """Whether the user may select its sessions."""
    may_start: bool
    """Whether the card offers to start the task's first session."""
    moves: str
    """The columns that the user can move it to, each with how: ``DONE:done CANCELLED:cancel``."""

    @property
    def is_planned(self) -> bool:
        """Whether somebody has planned the task."""
        return bool(self.plan.priority or self.plan.labels or self.plan.assignee)


def task_card(found: BoardTask, writable: Collection[int]) -> TaskCard:
    """Return the card of a task; ``writable`` are the teams in which the user may write."""
    task = found.task
    path, may_write = f"/tasks/{task.id}/", task.team_id in writable
    return TaskCard(
        id=task.id,
        title=task.title,
        path=path,
        about=f"{task.repository.name if task.repository else 'no repository'} · {task.team.name}",
        run_id=getattr(task, "run_id", None),
        owner=task.created_by.username if task.created_by else "",
        created_at=Moment.at(task.created_at),
        since=Moment.at(task.in_state_since) if task.in_state_since else None,
        age=age_text(task.in_state_since, timezone.now()),
        plan=_plan_of_card(found.plan),
        sessions=tuple(_session_line(row, path) for row in found.sessions),
        more=found.session_count - len(found.sessions),
        may_choose=may_write,
        may_start=may_write and not found.sessions and task.repository_id is not None and not task.is_over,
        moves=_moves_of(found) if may_write else "",
    )


def _moves_of(found: BoardTask) -> str:
    if found.task.archived_at is not None:
        return ""
    task = movable(found.task, found.session_states)
    return " ".join(f"{state}:{move}" for state, move in possible_moves(task).items())


def _plan_of_card(plan: Plan) -> PlanOfCard:
    return PlanOfCard(plan.priority, tuple(plan.labels), plan.assignee.username if plan.assignee else "")


def _session_line(row: SessionRow, task_path: str) -> SessionLine:
    session, chips = row.session, session_chips(row)
    counted_at = session.branch_counted_at if session.branch_additions is not None else None
    return SessionLine(
        id=session.id,
        name=session.agent_profile.name,
        path=f"{task_path}sessions/{session.id}/",
        summary=chips["summary"],
        chips=chips["chips"],
        needy=bool(chips["needy"]),
        may_answer=bool(chips["may_answer"]),
        processes=chips["processes"],
        commands=chips["commands"],
        counted_at=Moment.at(counted_at) if counted_at else None,
        is_count_current=row.is_count_current,
        is_count_unknown=counted_at is None and row.last_turn_at is not None,
        additions=session.branch_additions,
        deletions=session.branch_deletions,
    )


@lru_cache(maxsize=2_000)
def card_html(card: TaskCard) -> SafeString:
    """Return the list item of a card; most cards of a board are as they were when it was last shown to anybody."""
    return mark_safe(get_template("board/card.html").render({"card": card}))  # noqa: S308 (a template's output)


@dataclass(frozen=True, slots=True)
class ColumnCard:
    """A column of the board."""

    column: BoardColumn
    cards: Sequence[SafeString]
    """The HTML of the cards of its newest tasks."""
    criteria: BoardFilter

    @property
    def state(self) -> str:
        """The state of its tasks."""
        return self.column.state.value

    @property
    def label(self) -> Label:
        """The state in words."""
        return TASK_STATE_LABELS[self.column.state]

    @property
    def count(self) -> int:
        """How many tasks there are; the newest have cards."""
        return self.column.count

    @property
    def next_limit(self) -> int:
        """How many tasks to show next; 0 if all are shown, or as many as can be."""
        limit = min(len(self.cards) + TASKS_PER_COLUMN, MAX_TASKS_PER_COLUMN)
        if len(self.cards) < min(self.count, limit):
            return limit
        return 0

    @property
    def query_for_more(self) -> str:
        """The query string of the board with that many tasks."""
        limits = {**self.criteria.limits, self.column.state: self.next_limit}
        return filter_query(replace(self.criteria, limits=limits))


@dataclass(frozen=True, slots=True)
class RestartCard:
    """The result of the last restart."""

    result: LastRestart

    @property
    def counts(self) -> list[tuple[str, int, Label]]:
        """The numbers of sessions by kind of receipt, with the kind in words."""
        labels = {**OUTCOME_LABELS, "under_way": Label("still starting", "busy")}
        counts = self.result.counts
        return [(kind, counts[kind], label) for kind, label in labels.items() if counts.get(kind)]

    @property
    def needy(self) -> list[tuple[TaskSession, Label]]:
        """The first sessions that need a person, with what they need."""
        return [(session, attention_label(session, needs)) for session, needs in self.result.needy]


ACTION_WORDS: Final = {"resume": "asked to resume", "stop": "asked to stop"}


@never_cache
@require_POST
def act_on_many_sessions(request: UserHttpRequest) -> HttpResponse:
    """Request ``action`` (resume or stop) for each ``session`` of the form; a failure does not stop the others."""
    if not may_write_somewhere(request.user):
        raise PermissionDenied
    action = str(request.POST.get("action", ""))
    board_url = "/"
    if query := filter_query(parse_filter(request.GET)):
        board_url = f"/?{query}"
    try:
        outcomes = request_many(request.user, action, _selected_ids(request))
    except SessionsError as error:
        return render(request, "board/bulk.html", {"refused": error.message, "board_url": board_url}, status=422)
    failures = [outcome for outcome in outcomes if not outcome.ok]
    successes = [outcome for outcome in outcomes if outcome.ok]
    context = {
        "action": ACTION_WORDS[action],
        "outcomes": failures + successes,  # failures first, because the user must read those
        "success_count": len(successes),
        "failure_count": len(failures),
        "board_url": board_url,
    }
    return render(request, "board/bulk.html", context)


def _selected_ids(request: UserHttpRequest) -> list[uuid.UUID]:
    ids = []
    for text in request.POST.getlist("session"):
        session_id = parse_uuid(text)
        if session_id is None:
            raise Invalid("session must be the id of a session.", field="sessions")
        ids.append(session_id)
    return ids


@never_cache
@require_GET
def board_updates(request: UserHttpRequest) -> JsonResponse:
    """Return the board's current tasks that match the filter in the query string."""
    context = columns_context(request.user, _writable_ids(request.user), parse_filter(request.GET))
    return part_response("board", "board/board_columns.html", context)
