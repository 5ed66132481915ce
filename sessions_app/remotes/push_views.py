"""The page on which a branch is pushed: what a push would do, the form that confirms it, and what became of it."""

from __future__ import annotations

import uuid
from typing import Any, Final

from django.contrib import messages
from django.http import HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.finish.models import FinishIntent
from sessions_app.finish.rights import may_finish
from sessions_app.finish.rules.finish import FinishKind, FinishState, branch_name
from sessions_app.kernel.services.errors import SessionsError
from sessions_app.models import TaskSession
from sessions_app.pages.shortcuts import find_session, part_response
from sessions_app.remotes import push_requests
from sessions_app.remotes.push_requests import BRANCH, PUSH_TARGETS

_LABELS: Final = {
    FinishState.REQUESTED: ("Requested", "busy"),
    FinishState.APPLYING: ("Pushing", "busy"),
    FinishState.DONE: ("Pushed", "good"),
    FinishState.REFUSED: ("Not pushed", "bad"),
    FinishState.UNKNOWN: ("Not known", "ask"),
}


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def show_push(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """Show what a push would do (``?target=``), or request the one that was confirmed."""
    session = find_session(request, task_id, session_id)
    if request.method == "POST":
        return _push(request, session)
    target = request.GET.get("target", "")
    if target not in PUSH_TARGETS:
        target = BRANCH
    may_push = may_finish(request.user, session.task.team, FinishKind.PUSH)
    context = {
        "task": session.task,
        "session": session,
        "target": target,
        # Whoever may not push does not make Kandev connect to a server.
        "push": push_requests.read_push_state(session, target, look=may_push),
        "may_push": may_push,
        "is_staff": request.user.is_staff,
        "warning": push_requests.CI_WARNING,
        **_pushes_context(session),
    }
    return render(request, "remotes/push.html", context)


def _push(request: UserHttpRequest, session: TaskSession) -> HttpResponse:
    given = {name: str(request.POST.get(name, "")) for name in ("target", "commit", "expected")}
    try:
        push_requests.request_push(session, request.user, **given, overwrite="overwrite" in request.POST)
    except SessionsError as error:
        messages.error(request, error.message)
    address = reverse("session-push", args=(session.task_id, session.id))
    if given["target"] in PUSH_TARGETS:
        address += f"?target={given['target']}"
    return redirect(address)


@never_cache
@require_GET
def push_updates(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> JsonResponse:
    """Return the part with the session's pushes."""
    session = find_session(request, task_id, session_id)
    return part_response("pushes", "remotes/pushes.html", _pushes_context(session), request)


def _pushes_context(session: TaskSession) -> dict[str, Any]:
    shown = push_requests.recent_pushes(session)
    return {"pushes": [_row(intent) for intent in shown], "is_open": any(intent.is_open for intent in shown)}


def _row(intent: FinishIntent) -> dict[str, Any]:
    label, tone = _LABELS.get(FinishState(intent.state), ("Unknown", "bad"))
    return {
        "intent": intent,
        "label": label,
        "tone": tone,
        "name": branch_name(intent.target_ref),
        "links": push_requests.links_in(intent.answer),
    }
