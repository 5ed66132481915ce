"""External waits on the session page: the form that opens one, the response that shows its key, and the list."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.contrib import messages
from django.http import HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.kernel.services.errors import SessionsError
from sessions_app.models import TaskSession, Turn
from sessions_app.pages.shortcuts import find_session
from sessions_app.sessions.rules.session_status import WaitStatus
from sessions_app.sessions.rules.situation_facts import humanize_code
from sessions_app.waits import services as waits
from sessions_app.waits.forms import WaitCreateForm
from sessions_app.waits.reader import list_waits, load_waits
from sessions_app.waits.rules.wait_keys import REQUESTED_KINDS, WaitKeyState, WaitKind, most_usable_state
from sessions_app.waits.services import OpenWait

MAX_PAST_WAITS: Final = 5
MAX_OPEN_WAITS: Final = 200
"""Open waits on their page; the API lists all, in pages."""
RESUME_PATH: Final = "/api/v1/runs/resume/"
EXAMPLE_PAYLOADS: Final[Mapping[str, dict[str, Any]]] = {
    "build": {"result": "passed"},
    "approval": {"approved": True},
    "tool": {"result": "…"},
    "other": {"note": "Continue."},
}
"""Payload of the example request, by the kind that the user chose in the form."""
WAIT_STATE_LABELS: Final = {
    WaitKeyState.CONSUMED: ("Answered", "good"),
    WaitKeyState.EXPIRED: ("Expired", "off"),
    WaitKeyState.REVOKED: ("Revoked", "off"),
}


@never_cache
@require_safe
def show_open_waits(request: UserHttpRequest) -> HttpResponse:
    """Show what the sessions of the user's teams wait for now, the oldest first."""
    rows = list(list_waits(request.user)[: MAX_OPEN_WAITS + 1])
    shown = load_waits(rows[:MAX_OPEN_WAITS])
    return render(request, "waits/open_waits.html", {"open_waits": shown, "is_cut": len(rows) > MAX_OPEN_WAITS})


@never_cache
@require_POST
def create_wait(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """Open a wait, and show its key."""
    row, form = find_session(request, task_id, session_id), WaitCreateForm(request.POST)
    if not form.is_valid():
        name, errors = next(iter(form.errors.items()))
        return _show_refusal(request, row, "validation_error", f"{form.fields[name].label}: {errors[0]}")
    values = form.cleaned_data
    deadline = None
    if values["expires"]:
        deadline = timezone.now() + timedelta(seconds=values["expires"])
    kind = WaitKind.EXTERNAL
    if values["kind"] == "tool":
        kind = WaitKind.TOOL_RESULT
    begin = partial(waits.open_wait, row.id, values["reason"], deadline, request.user, kind)
    return _show_key(request, row, values["kind"], begin)


@never_cache
@require_POST
def rotate_wait_key(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """Replace the key of the open wait, and show the new one."""
    row, wait_id = find_session(request, task_id, session_id), str(request.POST.get("wait_id", ""))
    return _show_key(request, row, "other", lambda: waits.rotate_wait_key(row.id, wait_id, request.user))


@never_cache
@require_POST
def begin_wait_again(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """Open again a wait that ended without an answer, and show its key."""
    row, wait_id = find_session(request, task_id, session_id), str(request.POST.get("wait_id", ""))
    return _show_key(request, row, "other", lambda: waits.restart_wait(row.id, wait_id, request.user))


def _show_key(request: UserHttpRequest, row: TaskSession, kind: str, act: Callable[[], OpenWait]) -> HttpResponse:
    """Call ``act`` and show the key of the wait: as an HTML fragment for a script, otherwise as a page.

    No redirect, because only this response shows the key.
    """
    try:
        opened = act()
    except SessionsError as error:
        return _show_refusal(request, row, error.code, error.message)
    context = {
        "task": row.task,
        "session": row,
        "wait": opened,
        "call": _example_request(request, opened, EXAMPLE_PAYLOADS[kind]),
    }
    if _wants_fragment(request):
        return JsonResponse({"key_html": render_to_string("waits/wait_key.html", context)})
    return render(request, "waits/wait_page.html", context)


def _show_refusal(request: UserHttpRequest, row: TaskSession, code: str, message: str) -> HttpResponse:
    if _wants_fragment(request):
        return JsonResponse({"code": code, "message": message}, status=409)
    messages.error(request, message)
    return redirect("session", row.task_id, row.id)


def _wants_fragment(request: UserHttpRequest) -> bool:
    return request.headers.get("Accept", "").startswith("application/json")


def _example_request(request: UserHttpRequest, opened: OpenWait, payload: dict[str, Any]) -> str:
    """Return an example curl command for a build. Its idempotency key makes retries after a lost response harmless."""
    body = {"resume_token": opened.resume_token, "idempotency_key": opened.wait_id, "payload": payload}
    return (
        f"curl --fail-with-body --retry 5 -H 'Content-Type: application/json' \\\n"
        f"  -d '{json.dumps(body)}' \\\n  {request.build_absolute_uri(RESUME_PATH)}"
    )


def wait_contexts(session: TaskSession, wait: WaitStatus | None) -> dict[str, Any]:
    """Return ``wait`` (the open external wait, or None) and ``past_waits`` (the newest ended ones).

    The argument ``wait`` is the one in the session's status, which can also be a permission wait.
    """
    newest = session.runs.filter(wait_kind__in=REQUESTED_KINDS).order_by("-started_at")[: MAX_PAST_WAITS + 1]
    runs = list(newest.prefetch_related("wait_keys__by"))
    open_wait = None
    if runs and wait is not None and wait["kind"] != WaitKind.PERMISSION:
        open_wait = _open_wait_context(runs.pop(0))
    return {"wait": open_wait, "past_waits": [_past_wait_context(run) for run in runs[:MAX_PAST_WAITS]]}


def _open_wait_context(run: Turn) -> dict[str, Any]:
    newest_key = max(run.wait_keys.all(), key=lambda key: key.created_at)
    requester = ""
    if newest_key.by is not None:
        requester = newest_key.by.get_username()
    return {
        "id": run.wait_id,
        "reason": run.wait_reason,
        "deadline": newest_key.expires_at,
        "by": requester,
        "since": run.started_at,
    }


def _past_wait_context(run: Turn) -> dict[str, Any]:
    """Return how a wait ended. If it had several keys, its most usable one decides (see ``most_usable_state``)."""
    now, keys = timezone.now(), list(run.wait_keys.all())
    state = most_usable_state(key.state(now) for key in keys) or WaitKeyState.REVOKED
    state_name, tone = WAIT_STATE_LABELS.get(state, ("Open", "ask"))
    context = {"reason": run.wait_reason, "state": state_name, "tone": tone, "why": "", "at": run.ended_at}
    for key in reversed(keys):
        if key.state(now) is state:
            context["why"] = humanize_code(key.reason)
            context["at"] = key.consumed_at or key.revoked_at or key.expired_at or run.ended_at
            break
    return context
