"""The page of one task: its sessions, a form for a new one, and what can be done with the task."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.paginator import Paginator
from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from sessions_app.accounts.authorization import may_write
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.background.services import ended_with_task
from sessions_app.board.forms import SessionCreateForm, TaskTextForm
from sessions_app.board.services import deletion, tasks
from sessions_app.board.services.board import session_rows
from sessions_app.board.services.tasks import create_session_with_defaults
from sessions_app.finish.unfinished import unfinished_work
from sessions_app.kernel.rules.parsers import parse_uuid
from sessions_app.kernel.services.errors import Conflict, SessionsError, TaskChanged, WorkUnfinished
from sessions_app.models import Task, TaskSession
from sessions_app.pages.labels import TASK_STATE_LABELS
from sessions_app.pages.shortcuts import find_task, form_status, part_response, queried_number
from sessions_app.planning.services import plan_of
from sessions_app.sessions.rules.situation_facts import TASK_ENDS
from sessions_app.sessions.services.queries import SECRET_FIELDS
from sessions_app.sessions.views.session_summary import session_chips
from sessions_app.sessions.views.sessions import run_and_redirect
from sessions_app.usage.rules.wording import usage_summary
from sessions_app.usage.services import task_usage
from sessions_app.workflows.services.runs import run_of_task

SESSIONS_PER_PAGE: Final = 50
"""Maximum number of sessions on one page of a task."""


TASK_CHANGES: Final[Mapping[str, Callable[[Task, Any], Task]]] = {
    "done": tasks.finish_task,
    "cancel": tasks.cancel_task,
    "reopen": tasks.reopen_task,
    "archive": tasks.archive_task,
    "unarchive": tasks.unarchive_task,
}


@never_cache
def show_task(request: UserHttpRequest, task_id: uuid.UUID) -> HttpResponse:
    """Show the task and its newest sessions; ``?page=NUMBER`` shows older ones. A POST creates a session on it."""
    row = find_task(request, task_id)
    # The first session is suggested the description of the task as its prompt.
    initial = {"prompt": tasks.first_prompt(row)}
    initial |= _session_to_take_over(request, row)
    form = SessionCreateForm(request.user, row, request.POST or None, request.FILES or None, initial=initial)
    if request.method == "POST" and form.is_valid():
        values = form.cleaned_data
        try:
            made = tasks.create_session(
                request.user,
                row,
                values["agent_profile"],
                values["executor"],
                prompt=form.first_prompt,
                files=values["attachments"],
                executor_pool=form.executor_pool,
                worktree_of=values.get("worktree_of"),
            )
        except SessionsError as error:
            messages.error(request, error.message)
        else:
            return redirect("session", row.id, made.id)
    context = {
        "form": form,
        "reads_only": not may_write(request.user, row.team_id),
        "workflow_run": run_of_task(row),
        "usage_total": usage_summary(task_usage(row.id)),
        "stop_ends": ended_with_task(row),
        "plan": plan_of(row),
    }
    context |= sessions_context(row, request.user, queried_number(request, "page"))
    return render(request, "board/task.html", context, status=form_status(form))


def _session_to_take_over(request: UserHttpRequest, row: Task) -> dict[str, Any]:
    """Return the session that owns the worktree named by ``?worktree_of=``, with its executor.

    Only that executor has the worktree.
    """
    session = row.sessions.filter(id=parse_uuid(request.GET.get("worktree_of", ""))).first()  # type: ignore[misc]
    if session is None:
        return {}
    return {"worktree_of": session.worktree_owner_id, "executor": session.executor_id}


def sessions_context(row: Task, user: User, number: int | None = None) -> dict[str, Any]:
    """Return a task and one page of its sessions, newest first; the number of queries is constant.

    The first page has the ``number`` 1. A number after the last page means the last one.
    """
    # Only the ids of all sessions are sorted, not what the page shows of them.
    ids = row.sessions.order_by("-created_at", "id").values_list("id", flat=True)
    page = Paginator(ids, SESSIONS_PER_PAGE).get_page(number or 1)
    rows = TaskSession.objects.visible_to(user).filter(id__in=list(page))
    shown = rows.select_related("task", "agent_profile", "executor").defer(*SECRET_FIELDS)
    described = session_rows(list(shown.order_by("-created_at", "id")), user)
    return {
        "task": row,
        "state_label": TASK_STATE_LABELS[row.state],
        "over": TASK_ENDS.get(row.end),
        "page": page,
        "sessions": [session_chips(row) for row in described.values()],
    }


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def edit_task(request: UserHttpRequest, task_id: uuid.UUID) -> HttpResponse:
    """Show title, description and base branch of a task as a form, or save them; the form names what it shows.

    What cannot be saved is shown again: with 409 and the present texts if somebody else has changed those, and with 409
    if a session has started from the base branch meanwhile.
    """
    row = find_task(request, task_id)
    if not may_write(request.user, row.team_id):
        return redirect("task", row.id)
    if request.method != "POST":
        return _show_texts(request, row, {"title": row.title, "description": row.description})
    form, version = TaskTextForm(request.POST), str(request.POST.get("version", ""))
    entered = {name: str(request.POST.get(name, "")) for name in ("title", "description", "base_branch")}
    if not form.is_valid():
        error = " ".join(str(text) for texts in form.errors.values() for text in texts)
        return _show_texts(request, row, entered, version=version, error=error, status=422)
    values = form.cleaned_data
    # Only if this form has changed it: of an older page, or beside a change of somebody else, it stays.
    if values["base_branch"] == request.POST.get("shown_base", values["base_branch"]):
        del values["base_branch"]
    try:
        tasks.change_task(row, values, version)
    except TaskChanged as error:
        context = {"error": error.message, "version": error.details["version"], "current": error.details}
        return _show_texts(request, row, {**entered, **values}, status=409, **context)
    except Conflict as error:
        return _show_texts(request, row, {**entered, **values}, version=version, error=error.message, status=409)
    return redirect("task", row.id)


def _show_texts(
    request: UserHttpRequest, row: Task, entered: Mapping[str, str], *, status: int = 200, **context: Any
) -> HttpResponse:
    shown = {
        "task": row,
        "title": entered["title"],
        "description": entered["description"],
        "base_branch": entered.get("base_branch", row.base_branch),
        "has_sessions": row.sessions.exists(),
        "base_problem": tasks.BASE_IS_USED if tasks.is_base_used(row) else "",
        "version": tasks.text_version(row),
    }
    return render(request, "board/edit_task.html", {**shown, **context}, status=status)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def delete_task(request: UserHttpRequest, task_id: uuid.UUID) -> HttpResponse:
    """Show what deleting a task would delete, and what of it is nowhere else; or delete it."""
    row = find_task(request, task_id)
    if not may_write(request.user, row.team_id):
        return redirect("task", row.id)
    refused = ""
    if request.method == "POST":
        try:
            deletion.delete_task(row, request.user, str(request.POST.get("confirmed", "")))
        except WorkUnfinished:
            refused = "What would be lost has changed. Nothing was deleted: read it again."
        except SessionsError as error:
            refused = error.message
        else:
            messages.success(request, f"The task “{row.title}” was deleted.")
            return redirect("board")
    left = unfinished_work(row)
    context = {"task": row, "count": left.session_count, "left": left, "refused": refused}
    return render(request, "board/delete_task.html", context, status=409 if refused else 200)


@require_POST
def act_on_task(request: UserHttpRequest, task_id: uuid.UUID, action: str) -> HttpResponse:
    """Carry out one of ``TASK_CHANGES``, or ``start`` a session with the user's defaults; 404 for anything else."""
    row = find_task(request, task_id)
    if action == "start":
        return _start_default_session(request, row)
    if action not in TASK_CHANGES:
        raise Http404(action)
    if action == "done" and "confirmed" not in request.POST and (left := unfinished_work(row)).is_something:
        return render(request, "finish/confirm_done.html", {"task": row, "left": left})
    return run_and_redirect(request, lambda: TASK_CHANGES[action](row, request.user), "task", row.id)


def _start_default_session(request: UserHttpRequest, row: Task) -> HttpResponse:
    """Start a session with the user's default agent and executor, and the task's description as its first prompt.

    Only the task's first session gets that, unless the button says ``again``.
    """
    try:
        made = create_session_with_defaults(request.user, row, again="again" in request.POST)
    except SessionsError as error:
        messages.error(request, error.message)
        return redirect("task", row.id)
    return redirect("session", row.id, made.id)


@never_cache
@require_GET
def task_updates(request: UserHttpRequest, task_id: uuid.UUID) -> JsonResponse:
    """Return the current sessions of a task; ``?page=`` as on its page."""
    context = sessions_context(find_task(request, task_id), request.user, queried_number(request, "page"))
    return part_response("sessions", "board/task_sessions.html", context)
