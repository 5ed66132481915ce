"""The page on which a queued prompt is edited, and earlier prompts for the composer."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from sessions_app.accounts.authorization import may_write_session
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.kernel.rules.states import PromptKind, PromptState
from sessions_app.kernel.services.errors import PromptChanged, PromptNotQueued, SessionsError
from sessions_app.models import TaskSession
from sessions_app.pages.shortcuts import find_session
from sessions_app.prompts import services as prompts


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def edit_prompt(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """Show a queued prompt as a form, or save its text; the form names the version that it shows.

    A text that cannot be saved, because the prompt was sent or somebody else changed it, is shown again with 409. A
    script gets ``{code, message}`` instead, and the present version if there is another one.
    """
    row = find_session(request, task_id, session_id)
    if request.method != "POST":
        return _show_form(request, row)
    message_id, text = str(request.POST.get("message_id", "")), str(request.POST.get("text", ""))
    text = text.replace("\r\n", "\n")
    by_script = request.headers.get("Accept", "").startswith("application/json")
    try:
        prompts.edit_prompt(row.id, message_id, text, request.user, version=_number(request.POST.get("version")))
    except SessionsError as error:
        if by_script:
            answer = {"code": error.code, "message": error.message}
            if isinstance(error, PromptChanged):
                answer |= {"version": error.details["version"]}
            return JsonResponse(answer, status=409)
        if isinstance(error, PromptChanged | PromptNotQueued):
            return _show_again(request, row, error, message_id, text)
        messages.error(request, error.message)
    else:
        if by_script:
            return JsonResponse({})
    return redirect("session", row.task_id, row.id)


def _show_form(request: UserHttpRequest, row: TaskSession) -> HttpResponse:
    message_id = request.GET.get("message_id", "")
    prompt = row.prompts.filter(message_id=message_id, state=PromptState.QUEUED, kind=PromptKind.USER).first()
    if not may_write_session(request.user, row):
        return redirect("session", row.task_id, row.id)
    if prompt is None or prompt.of_workflow:
        refusal = "This prompt no longer waits in the queue."
        if prompt is not None:
            refusal = "A step of a workflow has sent this prompt, so it cannot be edited."
        messages.error(request, refusal)
        return redirect("session", row.task_id, row.id)
    context = {"message_id": message_id, "text": prompt.text, "version": prompt.text_version, "is_queued": True}
    return render(request, "prompts/edit_prompt.html", {"session": row, "task": row.task, **context})


def _show_again(
    request: UserHttpRequest, row: TaskSession, error: SessionsError, message_id: str, text: str
) -> HttpResponse:
    """Show the text that was not saved; as a new prompt if the prompt was sent meanwhile."""
    is_queued = isinstance(error, PromptChanged)
    context: dict[str, Any] = {"session": row, "task": row.task, "error": error.message, "text": text}
    context |= {"is_queued": is_queued, "message_id": message_id if is_queued else str(uuid.uuid4())}
    if is_queued:
        context |= {"version": error.details["version"], "current_text": error.details["text"]}
    return render(request, "prompts/edit_prompt.html", context, status=409)


@never_cache
@require_safe
def prompt_history(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> JsonResponse:
    """Return ``{prompts: [text]}``: what the user has sent to this session, the newest first, each text once."""
    row = find_session(request, task_id, session_id)
    return JsonResponse({"prompts": prompts.earlier_prompts(row, request.user)})


def _number(text: str | None) -> int:
    if text is not None and text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    return 0
