"""The page of one session: its conversation, what it waits for, and the composer."""

from __future__ import annotations

import uuid

from django.contrib.staticfiles.finders import find
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from sessions_app.models import Message, TaskSession
from sessions_app.services.rights import may_operate, may_write_session
from sessions_app.services.workflow_lists import run_of
from sessions_app.views.conversation import last_messages, messages_around, rendered
from sessions_app.views.found import find_session
from sessions_app.views.session_state import session_context
from sessions_app.views.waits import NewWait


@never_cache
@require_safe
def session(request: HttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """The whole page; ``?before=SEQ`` shows earlier messages, ``?at=SEQ`` those around one."""
    row = find_session(request, task_id, session_id)
    # The number first: a message that comes in between is told once more by the live updates.
    writes = may_write_session(request.user, row)
    context = {"last_seq": row.last_seq, **session_context(row, writes=writes)}
    messages, older, is_past = _messages(request, row)
    context |= {
        "messages_html": rendered(messages),
        "older_than": messages[0].seq if older else None,
        "may_commit": writes,
        "has_terminal": bool(find("kandev/vendor/xterm.js")),
        "may_operate": writes and may_operate(request.user, row),
        "new_wait": NewWait(auto_id="wait-%s"),
        "is_past": is_past,
        "workflow_run": run_of(row.task),
        "message_id": str(uuid.uuid4()),
    }
    return render(request, "session/page.html", context)


@never_cache
@require_safe
def earlier(request: HttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> JsonResponse:
    """The page of messages before ``?before=SEQ``: ``{messages: [html], older_than}``, oldest first."""
    messages, older = last_messages(find_session(request, task_id, session_id), _number(request, "before"))
    told = {"messages": [item["html"] for item in rendered(messages)], "older_than": messages[0].seq if older else None}
    return JsonResponse(told)


def _messages(request: HttpRequest, row: TaskSession) -> tuple[list[Message], bool, bool]:
    """Those of the page, whether there are older ones, and whether there are newer ones."""
    at, before = _number(request, "at"), _number(request, "before")
    if at is not None:
        return messages_around(row, at)
    return (*last_messages(row, before), before is not None)


def _number(request: HttpRequest, name: str) -> int | None:
    given = request.GET.get(name)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) < 19):
        raise Http404(f"{name} is no number")
    return int(given)
