"""The page of one task: what it is about, its sessions, and the form for another one."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from sessions_app.domain.banners import TASK_ENDS
from sessions_app.models import Task
from sessions_app.services import tasks
from sessions_app.services.board import session_rows, with_marks
from sessions_app.services.catalogue import SECRETS
from sessions_app.services.errors import SessionsError
from sessions_app.services.rights import may_write
from sessions_app.services.usual import start_as_usual
from sessions_app.services.workflow_lists import run_of
from sessions_app.views.chips import session_chips
from sessions_app.views.forms import NewSession
from sessions_app.views.found import find_task
from sessions_app.views.session_actions import attempt
from sessions_app.views.wording import TASK_STATES

CHANGES: Final[Mapping[str, Callable[[Task, Any], Task]]] = {
    "done": tasks.finish,
    "cancel": tasks.cancel,
    "reopen": tasks.reopen,
    "archive": tasks.archive,
    "unarchive": tasks.unarchive,
}


@never_cache
def task(request: HttpRequest, task_id: uuid.UUID) -> HttpResponse:
    """Show the task; a POST makes a session on it."""
    row = find_task(request, task_id)
    form = NewSession(request.user, row, request.POST or None, initial=_first_prompt(row) | _taken_over(request, row))
    if request.method == "POST" and form.is_valid():
        values = form.cleaned_data
        text = values["prompt"].replace("\r\n", "\n")
        try:
            made = tasks.create_session(
                request.user,
                row,
                values["agent_profile"],
                values["executor"],
                prompt=text if text.strip() else "",
                worktree_of=values.get("worktree_of"),
            )
        except SessionsError as error:
            messages.error(request, error.message)
        else:
            return redirect("session", row.id, made.id)
    context = {
        "form": form,
        "reads_only": not may_write(request.user, row.team_id),
        "workflow_run": run_of(row),
        **sessions_context(row, request.user),
    }
    return render(request, "task.html", context, status=422 if form.errors else 200)


def _first_prompt(row: Task) -> dict[str, str]:
    """A task that nobody has begun offers its description as the first prompt."""
    return {} if row.sessions.exists() else {"prompt": row.description}


def _taken_over(request: HttpRequest, row: Task) -> dict[str, Any]:
    """The session whose worktree the address names, and its executor: it can be had on no other."""
    try:
        wanted = row.sessions.filter(id=uuid.UUID(request.GET.get("worktree_of", ""))).first()
    except ValueError:
        return {}
    if wanted is None:
        return {}
    return {"worktree_of": wanted.worktree_owner_id, "executor": wanted.executor_id}


def sessions_context(row: Task, user: Any) -> dict[str, Any]:
    """A task and its sessions, newest first; a constant number of queries."""
    sessions = list(with_marks(row.sessions.select_related("agent_profile", "executor").defer(*SECRETS), user))
    told = session_rows(sessions)
    return {
        "task": row,
        "word": TASK_STATES[row.state],
        "over": TASK_ENDS.get(row.end),
        "sessions": [session_chips(told[one.id]) for one in sessions],
    }


@require_POST
def change(request: HttpRequest, task_id: uuid.UUID, what: str) -> HttpResponse:
    """Carry out one of ``CHANGES``, or start a session with what the user chose last; anything else is a 404."""
    row = find_task(request, task_id)
    if what == "start":
        return _start(request, row)
    if what not in CHANGES:
        raise Http404(what)
    return attempt(request, lambda: CHANGES[what](row, request.user), "task", row.id)


def _start(request: HttpRequest, row: Task) -> HttpResponse:
    """A session with the user's usual agent and place, and the task's description as its first prompt."""
    try:
        made = start_as_usual(request.user, row)
    except SessionsError as error:
        messages.error(request, error.message)
        return redirect("task", row.id)
    return redirect("session", row.id, made.id)
