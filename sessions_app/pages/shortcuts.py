"""Find the objects of a request (404 for those of other teams, 403 for a viewer's write), and answer with a part."""

from __future__ import annotations

import uuid
from typing import Any, Final

from django.core.exceptions import PermissionDenied
from django.forms import Form
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import get_object_or_404, redirect
from django.template.loader import render_to_string
from django.utils.http import MAX_URL_REDIRECT_LENGTH, url_has_allowed_host_and_scheme

from sessions_app.accounts.authorization import may_write
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.board.services.tasks import visible_tasks
from sessions_app.kernel.rules.parsers import parse_number
from sessions_app.models import Task, TaskSession
from sessions_app.sessions.services.queries import visible_sessions

READ_METHODS: Final = ("GET", "HEAD", "OPTIONS")


def find_task(request: UserHttpRequest, task_id: uuid.UUID) -> Task:
    """Return a task of the user's teams. Raises Http404 for any other, and PermissionDenied if a viewer writes."""
    found: Task = get_object_or_404(visible_tasks(request.user), id=task_id)
    require_write_access(request, found.team_id)
    return found


def find_session(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> TaskSession:
    """Return a session of this task, if the user may see it. Raises what ``find_task`` raises."""
    found: TaskSession = get_object_or_404(visible_sessions(request.user).filter(task_id=task_id), id=session_id)
    require_write_access(request, found.task.team_id)
    return found


def require_write_access(request: UserHttpRequest, team_id: int) -> None:
    """Raise PermissionDenied for a request that writes, by a user who may not write in the team."""
    if request.method not in READ_METHODS and not may_write(request.user, team_id):
        raise PermissionDenied


def queried_number(request: UserHttpRequest, name: str) -> int | None:
    """Return a number in the query string; None without one. Raises Http404 for anything else."""
    given = request.GET.get(name)
    if given is None:
        return None
    number = parse_number(given)
    if number is None:
        raise Http404(f"{name} must be a number")
    return number


def redirect_back(request: HttpRequest, default: str) -> HttpResponse:
    """Redirect to the page in the form (``next``); 204 for a script.

    Redirect to ``default`` if that page is on another site, or its address is longer than Django redirects to.
    """
    if "quiet" in request.POST:
        return HttpResponse(status=204)
    page = request.POST.get("next", "")
    is_short = len(page) <= MAX_URL_REDIRECT_LENGTH
    if is_short and url_has_allowed_host_and_scheme(page, {request.get_host()}, request.is_secure()):
        return HttpResponseRedirect(page)  # not redirect(): it takes some texts for names of views
    return redirect(default)


def form_status(form: Form) -> int:
    """Return the HTTP status of a page with a form: 422 if what was entered is not valid, otherwise 200."""
    if form.errors:
        return 422
    return 200


def part_response(
    name: str, template: str, context: dict[str, Any], request: UserHttpRequest | None = None
) -> JsonResponse:
    """Return the response with the one part ``name`` of a page; forms in it need the ``request``."""
    return JsonResponse({"parts": {name: render_to_string(template, context, request)}})
