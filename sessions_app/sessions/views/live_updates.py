"""Live updates of the session page: JSON with rendered HTML fragments.

The browser requests them when its WebSocket reports a change, and otherwise at intervals. Applying an update twice is
harmless.
"""

from __future__ import annotations

import uuid

from django.http import JsonResponse
from django.template.loader import render_to_string
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from sessions_app.accounts.authorization import may_write_session
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.kernel.rules.parsers import parse_number
from sessions_app.pages.shortcuts import find_session
from sessions_app.sessions.views.session_page import SESSION_PARTS, session_context, wants_start_on_open
from sessions_app.stream.views import changed_messages, render_messages


@never_cache
@require_GET
def session_updates(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> JsonResponse:
    """Return status, HTML parts, and the messages with changes after ``?after=``.

    The response is ``{status, parts, messages, last_seq, more, can_prompt, start_on_open}``. ``last_seq`` is the value
    of the next ``?after=``; with ``more``, the browser should request it at once.
    """
    row = find_session(request, task_id, session_id)
    after = parse_number(request.GET.get("after", "0"))
    if after is None:
        return JsonResponse({"code": "validation_error", "message": "after must be a number."}, status=400)
    # Older than the messages below: a message that arrives in between is sent again next time, and never left out.
    last_seq = row.last_seq
    messages, more = changed_messages(row, after)
    if more:
        last_seq = messages[-1].updated_seq
    writes = may_write_session(request.user, row)
    context = session_context(row, writes=writes, user=request.user)
    return JsonResponse(
        {
            "status": context["status"].as_json(),
            "parts": {part: render_to_string(template, context) for part, template in SESSION_PARTS.items()},
            "messages": render_messages(messages, request.user),
            "last_seq": last_seq,
            "more": more,
            "can_prompt": not context["refusal"],
            "start_on_open": writes and wants_start_on_open(context["status"]),
        }
    )
