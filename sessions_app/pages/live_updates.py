"""Live updates of the pages: JSON with rendered HTML fragments.

The browser requests them when its WebSocket reports a change, and otherwise at intervals. Applying an update twice is
harmless.
"""

from __future__ import annotations

import uuid

from django.http import JsonResponse
from django.shortcuts import get_object_or_404
from django.template.loader import render_to_string
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from sessions_app.accounts.authorization import may_write_session
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.domain.sanitizing import parse_number
from sessions_app.models import SweepRequest
from sessions_app.pages import board as board_page
from sessions_app.pages import executors as executors_page
from sessions_app.pages import recovery, tasks
from sessions_app.pages import timeline as timeline_page
from sessions_app.pages.board import parse_filter
from sessions_app.pages.conversation import changed_messages, render_messages
from sessions_app.pages.session_state import SESSION_PARTS, hide_login, session_context, wants_start_on_open
from sessions_app.pages.shortcuts import find_session, find_task, part_response, queried_number


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
    reached = messages[-1].updated_seq if more else last_seq
    writes = may_write_session(request.user, row)
    context = session_context(row, writes=writes)
    hide_login(request.user, row, context)
    return JsonResponse(
        {
            "status": context["status"].as_json(),
            "parts": {part: render_to_string(f"session/{part}.html", context) for part in SESSION_PARTS},
            "messages": render_messages(messages, request.user),
            "last_seq": reached,
            "more": more,
            "can_prompt": not context["refusal"],
            "start_on_open": writes and wants_start_on_open(context["status"]),
        }
    )


@never_cache
@require_GET
def board_updates(request: UserHttpRequest) -> JsonResponse:
    """Return the board's current tasks that match the filter in the query string."""
    context = board_page.columns_context(request.user, parse_filter(request.GET))
    return part_response("board", "board_columns.html", context)


@never_cache
@require_GET
def task_updates(request: UserHttpRequest, task_id: uuid.UUID) -> JsonResponse:
    """Return the current sessions of a task; ``?page=`` as on its page."""
    context = tasks.sessions_context(find_task(request, task_id), request.user, queried_number(request, "page"))
    return part_response("sessions", "task_sessions.html", context)


@never_cache
@require_GET
def timeline_updates(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> JsonResponse:
    """Return the newest page of a session's timeline."""
    context = timeline_page.timeline_context(find_session(request, task_id, session_id))
    return part_response("timeline", "timeline_entries.html", context)


@never_cache
@require_GET
def sweep_request_updates(request: UserHttpRequest, request_id: uuid.UUID) -> JsonResponse:
    """Return the progress of a requested sweep."""
    context = recovery.sweep_request_context(request.user, get_object_or_404(SweepRequest, id=request_id))
    return part_response("request", "sweep_request_state.html", context)


@never_cache
@require_GET
def restart_updates(request: UserHttpRequest) -> JsonResponse:
    """Return the progress of the requested restart."""
    return part_response("restart", "restart_state.html", recovery.restart_context(request.user))


@never_cache
@require_GET
def executor_updates(request: UserHttpRequest) -> JsonResponse:
    """Return the current executors and executions."""
    return part_response("executors", "executors_list.html", executors_page.executors_context(request.user))


@never_cache
@require_GET
def sweep_updates(request: UserHttpRequest) -> JsonResponse:
    """Return the newest sweeps."""
    return part_response("sweeps", "sweeps_list.html", recovery.sweeps_context(request.user))
