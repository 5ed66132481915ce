"""What a person does on a session's page: each is one call of a service, then back to the page."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from sessions_app.models import TaskSession
from sessions_app.services import intents, policies, prompts, waits
from sessions_app.services.continuation import continue_interrupted
from sessions_app.services.errors import PermissionPending, SessionsError
from sessions_app.services.permissions import answer
from sessions_app.views.found import find_session

Act = Callable[[TaskSession, HttpRequest], Any]


def _given(request: HttpRequest, name: str) -> str:
    return str(request.POST.get(name, ""))


ACTIONS: Final[Mapping[str, Act]] = {
    "resume": lambda row, request: intents.resume(row.id, request.user, _given(request, "mode") or "auto"),
    "cancel": lambda row, request: intents.cancel(row.id, request.user),
    "end-wait": lambda row, request: waits.end(row.id, _given(request, "wait_id")),
    "continue-wait": lambda row, request: waits.continue_without(row.id, _given(request, "wait_id"), request.user),
    "stop": lambda row, request: intents.stop(row.id, request.user),
    "close": lambda row, request: intents.close(row.id, request.user, _given(request, "as")),
    "answer": lambda row, request: answer(
        row.id,
        _given(request, "permission_id"),
        _given(request, "option_id"),
        _given(request, "resume_token"),
        request.user,
    ),
    "continue": lambda row, request: continue_interrupted(row.id, _given(request, "message_id"), request.user),
    "policy": lambda row, request: policies.set_session_policy(row.id, {"policy": _given(request, "policy")}),
    "resend": lambda row, request: prompts.resend(row.id, _given(request, "message_id"), request.user),
    "dismiss": lambda row, request: prompts.dismiss(row.id, _given(request, "message_id")),
    "withdraw": lambda row, request: prompts.withdraw(row.id, _given(request, "message_id")),
}


@require_POST
def act(request: HttpRequest, task_id: uuid.UUID, session_id: uuid.UUID, action: str) -> HttpResponse:
    """Carry out one of ``ACTIONS``; an unknown one is a 404."""
    row = find_session(request, task_id, session_id)
    if action not in ACTIONS:
        raise Http404(action)
    return attempt(request, lambda: ACTIONS[action](row, request), "session", row.task_id, row.id)


@require_POST
def prompt(request: HttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """Put a prompt into the queue; the same form sent twice is one prompt.

    One that would end the turn of an agent that waits for a permission has to be confirmed.
    """
    row = find_session(request, task_id, session_id)
    text, message_id = _given(request, "text").replace("\r\n", "\n"), _given(request, "message_id")
    confirmed = bool(_given(request, "ends_permission"))

    def send() -> None:
        intents.prompt(row.id, message_id, text, request.user, ends_permission=confirmed)

    try:
        return attempt(request, send, "session", row.task_id, row.id)
    except PermissionPending as question:
        asked = {"session": row, "task": row.task, "question": question, "text": text, "message_id": message_id}
        return render(request, "session/confirm_prompt.html", asked, status=409)


def attempt(request: HttpRequest, do: Callable[[], Any], *page: Any) -> HttpResponse:
    """Do it; a browser without JavaScript is sent to ``page`` (as for ``redirect``), a script is told in JSON.

    PermissionPending is the caller's to ask about, except where a script does.
    """
    by_script = request.headers.get("Accept", "").startswith("application/json")
    try:
        do()
    except SessionsError as error:
        if by_script:
            return JsonResponse({"code": error.code, "message": error.message}, status=409)
        if isinstance(error, PermissionPending):
            raise
        messages.error(request, error.message)
    else:
        if by_script:
            return JsonResponse({"next_message_id": str(uuid.uuid4())})
    return redirect(*page)
