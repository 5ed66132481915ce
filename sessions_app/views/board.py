"""The board: every task of the user's teams under its state, and the form for a new one."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache

from sessions_app.models import Task
from sessions_app.services import board as board_service
from sessions_app.services.errors import SessionsError
from sessions_app.services.first_steps import first_steps
from sessions_app.services.last_restart import LastRestart, last_restart
from sessions_app.services.rights import may_write_somewhere, writable_teams
from sessions_app.services.tasks import create_session, create_task
from sessions_app.views.board_filter import filter_context, query_of, read_filter
from sessions_app.views.chips import reason_word, session_chips
from sessions_app.views.forms import NewTask
from sessions_app.views.found import READS
from sessions_app.views.wording import OUTCOMES, TASK_STATES, Word


@never_cache
def board(request: HttpRequest) -> HttpResponse:
    """Show the board; a POST makes a task, and a session on it where it is to be started at once."""
    reads_only = not may_write_somewhere(request.user)
    if reads_only and request.method not in READS:
        raise PermissionDenied
    form = NewTask(request.user, request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            return _create(request, form.cleaned_data)
        except SessionsError as error:
            messages.error(request, error.message)
    context = {"form": form, "reads_only": reads_only, "lacking": _lacking(form), **board_context(request)}
    return render(request, "board.html", context, status=422 if form.errors else 200)


def board_context(request: HttpRequest) -> dict[str, Any]:
    """What the page shows beside the form for a new task."""
    wanted = read_filter(request.GET)
    steps = None if query_of(wanted) else first_steps(request.user)
    return {**filter_context(request.user, wanted), **columns_context(request.user, wanted), "steps": steps}


def _create(request: HttpRequest, values: dict[str, Any]) -> HttpResponse:
    repository = values["repository"]
    task = create_task(
        request.user,
        {
            "title": values["title"],
            "description": values["description"],
            "team": repository.team,
            "repository": repository,
        },
    )
    if "only" in request.POST:
        return redirect("task", task.id)
    text = values["description"].replace("\r\n", "\n")
    prompt = text if text.strip() else ""
    session = create_session(request.user, task, values["agent_profile"], values["executor"], prompt=prompt)
    return redirect("session", task.id, session.id)


def _lacking(form: NewTask) -> list[str]:
    """What staff has still to make before anybody can have a task."""
    nouns = {"repository": "a repository", "agent_profile": "an agent profile", "executor": "an executor"}
    return [noun for name, noun in nouns.items() if not form.fields[name].queryset.exists()]  # type: ignore[attr-defined]


def columns_context(user: Any, wanted: board_service.Filter = board_service.Filter()) -> dict[str, Any]:  # noqa: B008
    """The tasks that fit, newest first, under their states, and what the last restart came to."""
    columns = board_service.columns(user, wanted)
    writable = set(writable_teams(user).values_list("id", flat=True))
    since, total = last_restart(user), sum(one.count for one in columns)
    return {
        "columns": [_column(one, writable) for one in columns],
        "total": total,
        "has_archived": not total and Task.objects.visible_to(user).exclude(archived_at=None).exists(),
        "filtered": bool(query_of(wanted)),
        "since": _since(since) if since else None,
    }


def _column(column: board_service.Column, writable: set[int]) -> dict[str, Any]:
    cards = [
        {
            "task": task,
            "sessions": [session_chips(row) for row in rows],
            "may_start": not rows and task.repository_id is not None and not task.is_over and task.team_id in writable,
            "may_choose": task.team_id in writable,
        }
        for task, rows in column.tasks
    ]
    return {
        "state": column.state.value,
        "word": TASK_STATES[column.state],
        "count": column.count,
        "cards": cards,
        "shown": len(cards),
    }


def _since(told: LastRestart) -> dict[str, Any]:
    """The counts in the order of the receipts' kinds, those of interest to somebody who comes back."""
    words = {**OUTCOMES, "under_way": Word("still starting", "busy")}
    return {
        "sweep": told.sweep,
        "total": told.total,
        "counts": [(kind, told.counts[kind], word) for kind, word in words.items() if told.counts.get(kind)],
        "needy": [{"session": one, "word": reason_word(one)} for one in told.needy],
        "needy_count": told.needy_count,
    }
