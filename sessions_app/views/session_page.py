"""The page of one session: its conversation, what it waits for, and the composer."""

from __future__ import annotations

import uuid

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from sessions_app.services.rights import may_operate, may_write_session
from sessions_app.views.conversation import last_messages, rendered
from sessions_app.views.found import find_session
from sessions_app.views.session_state import session_context
from sessions_app.views.waits import NewWait


@never_cache
@require_safe
def session(request: HttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """The whole page; ``?before=SEQ`` shows earlier messages."""
    row = find_session(request, task_id, session_id)
    before = _number(request, "before")
    # The number first: a message that comes in between is told once more by the live updates.
    writes = may_write_session(request.user, row)
    context = {"last_seq": row.last_seq, **session_context(row, writes=writes)}
    messages, older = last_messages(row, before)
    context |= {
        "messages_html": rendered(messages),
        "older_than": messages[0].seq if older else None,
        "may_commit": writes,
        "may_operate": writes and may_operate(request.user, row),
        "new_wait": NewWait(auto_id="wait-%s"),
        "is_past": before is not None,
        "message_id": str(uuid.uuid4()),
    }
    return render(request, "session/page.html", context)


def _number(request: HttpRequest, name: str) -> int | None:
    given = request.GET.get(name)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) < 19):
        raise Http404(f"{name} is no number")
    return int(given)
