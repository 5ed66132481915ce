"""Many sessions resumed or stopped with one request; what came of each is told."""

from __future__ import annotations

import uuid
from typing import Any, Final

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from sessions_app.services.bulk import Outcome, order_many
from sessions_app.services.errors import Invalid, SessionsError
from sessions_app.services.rights import may_write_somewhere
from sessions_app.views.board_filter import query_of, read_filter

WORDS: Final = {"resume": "asked to go on", "stop": "asked to stop"}


@never_cache
@require_POST
def bulk(request: HttpRequest) -> HttpResponse:
    """Order what ``action`` says for each ``session`` of the form; one that fails stops no other."""
    if not may_write_somewhere(request.user):
        raise PermissionDenied
    action = str(request.POST.get("action", ""))
    try:
        outcomes = order_many(request.user, action, [_id(one) for one in request.POST.getlist("session")])
    except SessionsError as error:
        return render(request, "bulk.html", {"refused": error.message, **_back(request)}, status=422)
    context = {"word": WORDS[action], **_sorted(outcomes), **_back(request)}
    return render(request, "bulk.html", context)


def _id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError as error:
        raise Invalid("A session is named by its id.", field="sessions") from error


def _sorted(outcomes: list[Outcome]) -> dict[str, Any]:
    """Those that failed come first: of them something is to be known."""
    return {
        "outcomes": sorted(outcomes, key=lambda one: one.ok),
        "good": sum(one.ok for one in outcomes),
        "bad": sum(not one.ok for one in outcomes),
    }


def _back(request: HttpRequest) -> dict[str, str]:
    """To the board as it was."""
    query = query_of(read_filter(request.GET))
    return {"back": f"/?{query}" if query else "/"}
