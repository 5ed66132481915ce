"""The board: its filter, its columns, the form for a new task, and actions on many sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from sessions_app.accounts.authorization import may_write_somewhere, writable_teams
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.accounts.team_scope import teams_of
from sessions_app.agents.services.profiles import visible_profiles
from sessions_app.board.services import board as board_service
from sessions_app.board.services.board import BoardFilter
from sessions_app.board.services.tasks import create_session, create_task
from sessions_app.board.views.tasks import TaskCreateForm
from sessions_app.kernel.rules.parsers import parse_number, parse_uuid
from sessions_app.kernel.rules.states import TaskState
from sessions_app.kernel.services.errors import Invalid, SessionsError
from sessions_app.models import Task
from sessions_app.pages.labels import OUTCOME_LABELS, TASK_STATE_LABELS
from sessions_app.pages.shortcuts import READ_METHODS, part_response
from sessions_app.recovery.services.restarts import LastRestart, load_first_steps, load_last_restart
from sessions_app.sessions.rules.situation_facts import Label
from sessions_app.sessions.services.intents import request_many
from sessions_app.sessions.views.session_summary import attention_label, session_chips

FILTER_TEXT_LIMIT: Final = 200


def parse_filter(given: Mapping[str, str]) -> BoardFilter:
    """Return the filter in a query string: ``q``, ``team``, ``agent``, ``state``, ``mine``, ``needs``, ``archived``.

    Values that are not valid are ignored.
    """
    state = given.get("state", "")
    return BoardFilter(
        text=given.get("q", "").replace("\0", "").strip()[:FILTER_TEXT_LIMIT],
        team=parse_number(given.get("team", ""), 9),
        agent=parse_uuid(given.get("agent", "")),
        state=state if state in list(TaskState) else "",
        mine=bool(given.get("mine")),
        needs=bool(given.get("needs")),
        archived=bool(given.get("archived")),
    )


def filter_query(wanted: BoardFilter) -> str:
    """Return the query string of a filter (the inverse of ``parse_filter``); empty if it shows everything."""
    values = {
        "q": wanted.text,
        "team": wanted.team,
        "agent": wanted.agent,
        "state": wanted.state,
        "mine": wanted.mine and "1",
        "needs": wanted.needs and "1",
        "archived": wanted.archived and "1",
    }
    return urlencode({name: value for name, value in values.items() if value})


def filter_context(user: User, wanted: BoardFilter) -> dict[str, Any]:
    """Return the choices of the filter form, and the current filter."""
    return {
        "wanted": wanted,
        "query": filter_query(wanted),
        "teams": list(teams_of(user).order_by("name")),
        "agents": list(visible_profiles(user).only("id", "name")),
        "states": [(state.value, TASK_STATE_LABELS[state].text) for state in TaskState],
    }


@never_cache
def show_board(request: UserHttpRequest) -> HttpResponse:
    """Show the board. A POST creates a task, with a session that starts at once unless ``only`` is submitted."""
    reads_only = not may_write_somewhere(request.user)
    if reads_only and request.method not in READ_METHODS:
        raise PermissionDenied
    form = TaskCreateForm(request.user, request.POST or None, request.FILES or None)
    if request.method == "POST" and form.is_valid():
        try:
            return _create(request, form.cleaned_data)
        except SessionsError as error:
            messages.error(request, error.message)
    wanted = parse_filter(request.GET)
    context = {
        "form": form,
        "reads_only": reads_only,
        "lacking": _missing_prerequisites(form),
        "steps": None if filter_query(wanted) else load_first_steps(request.user),
        **filter_context(request.user, wanted),
        **columns_context(request.user, wanted),
    }
    return render(request, "board/board.html", context, status=422 if form.errors else 200)


def _create(request: UserHttpRequest, values: dict[str, Any]) -> HttpResponse:
    repository = values["repository"]
    told = {"title": values["title"], "description": values["description"]}
    task = create_task(request.user, {**told, "team": repository.team, "repository": repository})
    if "only" in request.POST:
        return redirect("task", task.id)
    text = values["description"].replace("\r\n", "\n")
    prompt = text if text.strip() else ""
    session = create_session(
        request.user, task, values["agent_profile"], values["executor"], prompt=prompt, files=values["attachments"]
    )
    return redirect("session", task.id, session.id)


def _missing_prerequisites(form: TaskCreateForm) -> list[str]:
    """Return what staff must still create before anyone can create a task."""
    nouns = {"repository": "a repository", "agent_profile": "an agent profile", "executor": "an executor"}
    return [noun for name, noun in nouns.items() if not form.fields[name].queryset.exists()]  # type: ignore[attr-defined]


def columns_context(user: User, wanted: board_service.BoardFilter = board_service.BoardFilter()) -> dict[str, Any]:  # noqa: B008
    """Return the matching tasks by state, newest first, and the result of the last restart."""
    columns = board_service.board_columns(user, wanted)
    writable = set(writable_teams(user).values_list("id", flat=True))
    since, total = load_last_restart(user), sum(one.count for one in columns)
    return {
        "columns": [_column_context(one, writable) for one in columns],
        "total": total,
        "has_archived": not total and Task.objects.visible_to(user).exclude(archived_at=None).exists(),
        "filtered": bool(filter_query(wanted)),
        "since": _restart_counts(since) if since else None,
    }


def _column_context(column: board_service.BoardColumn, writable: set[int]) -> dict[str, Any]:
    cards = [
        {
            "task": shown.task,
            "sessions": [session_chips(row) for row in shown.sessions],
            "more": shown.session_count - len(shown.sessions),
            "may_start": _may_start(shown, writable),
            "may_choose": shown.task.team_id in writable,
        }
        for shown in column.tasks
    ]
    return {
        "state": column.state.value,
        "word": TASK_STATE_LABELS[column.state],
        "count": column.count,
        "cards": cards,
        "shown": len(cards),
    }


def _may_start(shown: board_service.BoardTask, writable: set[int]) -> bool:
    """Return whether the card offers to start the task's first session."""
    task = shown.task
    return not shown.sessions and task.repository_id is not None and not task.is_over and task.team_id in writable


def _restart_counts(told: LastRestart) -> dict[str, Any]:
    """Return the result of a restart: counts by kind of receipt, and the sessions that need a person."""
    words = {**OUTCOME_LABELS, "under_way": Label("still starting", "busy")}
    return {
        "sweep": told.sweep,
        "total": told.total,
        "counts": [(kind, told.counts[kind], word) for kind, word in words.items() if told.counts.get(kind)],
        "needy": [{"session": one, "word": attention_label(one)} for one in told.needy],
        "needy_count": told.needy_count,
    }


ACTION_WORDS: Final = {"resume": "asked to resume", "stop": "asked to stop"}


@never_cache
@require_POST
def act_on_many_sessions(request: UserHttpRequest) -> HttpResponse:
    """Request ``action`` (resume or stop) for each ``session`` of the form; a failure does not stop the others."""
    if not may_write_somewhere(request.user):
        raise PermissionDenied
    action, query = str(request.POST.get("action", "")), filter_query(parse_filter(request.GET))
    back = f"/?{query}" if query else "/"
    try:
        ids = [parse_uuid(one) for one in request.POST.getlist("session")]
        if None in ids:
            raise Invalid("session must be the id of a session.", field="sessions")
        outcomes = request_many(request.user, action, [one for one in ids if one])
    except SessionsError as error:
        return render(request, "board/bulk.html", {"refused": error.message, "back": back}, status=422)
    context = {
        "word": ACTION_WORDS[action],
        "outcomes": sorted(outcomes, key=lambda one: one.ok),  # failures first, because the user must read those
        "good": sum(one.ok for one in outcomes),
        "bad": sum(not one.ok for one in outcomes),
        "back": back,
    }
    return render(request, "board/bulk.html", context)


@never_cache
@require_GET
def board_updates(request: UserHttpRequest) -> JsonResponse:
    """Return the board's current tasks that match the filter in the query string."""
    context = columns_context(request.user, parse_filter(request.GET))
    return part_response("board", "board/board_columns.html", context)
