"""The page on which requests are answered without the conversation: from inbox, board or a notification."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import urlsplit

from django.http import HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_safe

from executors_app.agent_capabilities import own_title_in_team
from sessions_app.accounts.authorization import may_write_session
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.models import TaskSession
from sessions_app.pages.shortcuts import find_session, part_response
from sessions_app.permissions.views.request_cards import (
    count_hidden,
    for_this_time,
    request_card,
    request_cards,
    without_keys,
)


@never_cache
@require_safe
def show_requests(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """Show the open requests of a session, or the one with the id ``?request=``, which may have ended meanwhile."""
    session = find_session(request, task_id, session_id)
    return render(request, "permissions/requests.html", _context(request, session))


@never_cache
@require_GET
def requests_live(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> JsonResponse:
    """Return the part of the page with the requests."""
    session = find_session(request, task_id, session_id)
    return part_response("requests", "permissions/open_requests.html", _context(request, session), request)


def _context(request: UserHttpRequest, session: TaskSession) -> dict[str, Any]:
    writes = may_write_session(request.user, session)
    asked = request.GET.get("request", "").replace("\0", "")
    if asked:
        card = request_card(session, asked)
        cards = [card] if card else []
    else:
        cards = request_cards(session)
    hidden = 0 if asked else count_hidden(session, cards)
    cards = [for_this_time(card) for card in cards]
    if not writes:
        cards = without_keys(cards)
    return {
        "session": session,
        "task": session.task,
        # What the cards read of the session's status.
        "status": {"agent_title": own_title_in_team(session.agent_profile, session.task.team_id)},
        "permissions": cards,
        "hidden_requests": hidden,
        "reads_only": not writes,
        "asked": asked,
        "back": _page_before(request),
    }


def _page_before(request: UserHttpRequest) -> str:
    """Return the page of this site to go back to: ``next``, or the one with the link that was followed."""
    given = request.GET.get("next", "")
    if not given:
        given = _linking_page(request)
    if given.startswith("/") and url_has_allowed_host_and_scheme(given, None):
        return given
    return reverse("attention")


def _linking_page(request: UserHttpRequest) -> str:
    """Return path and query of the other page of this site whose link was followed; empty without one."""
    try:
        before = urlsplit(request.headers.get("Referer", ""))
    except ValueError:  # not an address
        return ""
    if before.netloc != request.get_host() or before.path == request.path:
        return ""
    return before._replace(scheme="", netloc="", fragment="").geturl()
