"""The board: every task of the user's teams under its state, and the form for a new one."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Prefetch, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache

from sessions_app.domain.states import PromptState, TaskState
from sessions_app.models import Task, TaskSession
from sessions_app.services.errors import SessionsError
from sessions_app.services.rights import may_write_somewhere
from sessions_app.services.tasks import create_session, create_task
from sessions_app.views.forms import NewTask
from sessions_app.views.found import READS
from sessions_app.views.wording import TASK_STATES, state_word

SHOWN: Final = 50
"""Tasks of one state on the board; the rest is counted."""
ALWAYS_SHOWN: Final = (TaskState.TODO, TaskState.IN_PROGRESS, TaskState.REVIEW, TaskState.DONE)


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
    context = {"form": form, "reads_only": reads_only, "lacking": _lacking(form), **columns_context(request.user)}
    return render(request, "board.html", context, status=422 if form.errors else 200)


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


def columns_context(user: Any) -> dict[str, Any]:
    """The tasks that are not archived, newest first, under their states."""
    tasks = Task.objects.visible_to(user).filter(archived_at=None)
    counts = dict(tasks.order_by().values_list("state").annotate(Count("id")))
    shown = [state for state in TaskState if state in ALWAYS_SHOWN or counts.get(state)]
    return {
        "columns": [_column(tasks, state, counts.get(state, 0)) for state in shown],
        "total": sum(counts.values()),
    }


def _column(tasks: Any, state: TaskState, count: int) -> dict[str, Any]:
    rows = tasks.filter(state=state).select_related("repository", "team").prefetch_related(_sessions())[:SHOWN]
    cards = [{"task": task, "sessions": [session_row(row) for row in task.sessions.all()]} for task in rows]
    return {"state": state.value, "word": TASK_STATES[state], "count": count, "cards": cards, "shown": len(cards)}


def _sessions() -> Prefetch[Any, Any, Any]:
    return Prefetch("sessions", with_counts(TaskSession.objects.select_related("agent_profile")))


def with_counts(rows: Any) -> Any:
    """Sessions with ``asks`` (open permissions) and ``doubts`` (held prompts)."""
    return rows.annotate(
        asks=Count("permissions", filter=Q(permissions__state="pending"), distinct=True),
        doubts=Count("prompts", filter=Q(prompts__state=PromptState.HELD), distinct=True),
    )


def session_row(row: Any) -> dict[str, Any]:
    """A session as a line of a list; ``row`` comes from ``with_counts``."""
    return {"session": row, "word": state_word(row.state), "asks": row.asks, "doubts": row.doubts}
