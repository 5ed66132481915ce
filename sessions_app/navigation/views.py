"""The palette and the list of sessions beside a conversation, with the user's marks on them.

Without JavaScript, the palette is a page of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from django.http import HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.urls import NoReverseMatch, reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST, require_safe
from django.views.decorators.vary import vary_on_headers

from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.kernel.rules.parsers import parse_number
from sessions_app.models import TaskSession
from sessions_app.navigation import services
from sessions_app.pages.labels import TASK_STATE_LABELS
from sessions_app.pages.shortcuts import part_response, redirect_back


@dataclass(frozen=True, slots=True)
class Place:
    """A page that everybody can open: its title, the name of its address, and other words for it."""

    title: str
    name: str
    words: str = ""
    of_staff: bool = False


PLACES: Final = (
    Place("Board", "board", "tasks home"),
    Place("New task", "board", "create"),
    Place("Inbox", "attention", "attention needs"),
    Place("Waits", "waits"),
    Place("Workflows", "workflows"),
    Place("Executors", "executors", "machines"),
    Place("Agents", "agents", "setup profiles"),
    Place("Sweeps", "sweeps", "recovery restart"),
    Place("Usage", "usage", "tokens cost budget"),
    Place("Help", "help", "glossary keyboard"),
    Place("Settings: profile", "settings-profile", "theme time zone mail"),
    Place("Settings: password", "settings-password"),
    Place("Settings: notifications", "settings-notifications", "mail webhooks"),
    Place("Settings: API tokens", "settings-tokens"),
    Place("Settings: agents", "settings-agents", "profiles models keys"),
    Place("Settings: executors", "settings-executors", "runtimes docker machines", of_staff=True),
    Place("Settings: teams", "settings-teams", "members"),
    Place("Admin", "admin:index", "staff", of_staff=True),
)
"""The pages that the palette offers, in this order."""
_FRAGMENTS: Final = {"New task": "#new-task"}


@never_cache
@vary_on_headers("Accept")
@require_safe
def find(request: UserHttpRequest) -> HttpResponse:
    """Show what matches ``?q=``: for a script as ``{groups: [{title, found: [{text, note, url, tone}]}]}``."""
    text = request.GET.get("q", "").replace("\0", "").strip()[: services.MAX_QUERY]
    groups = [
        {"title": "Sessions", "found": _session_items(request, text)},
        {"title": "Tasks", "found": _task_items(request, text)},
        {"title": "Messages", "found": _message_items(text)},
        {"title": "Pages", "found": _page_items(request, text)},
    ]
    shown = [group for group in groups if group["found"]]
    if request.headers.get("Accept", "").startswith("application/json"):
        return JsonResponse({"groups": shown})
    return render(request, "navigation/find.html", {"groups": shown, "text": text, "most": services.MAX_QUERY})


def _session_items(request: UserHttpRequest, text: str) -> list[dict[str, str]]:
    return [
        {
            "text": each.session.task.title,
            "note": each.session.agent_profile.name,
            "state": each.label.text,
            "tone": each.label.tone,
            "url": reverse("session", args=[each.session.task_id, each.session.id]),
        }
        for each in services.find_sessions(request.user, text)
    ]


def _task_items(request: UserHttpRequest, text: str) -> list[dict[str, str]]:
    items = []
    for task in services.find_tasks(request.user, text):
        label = TASK_STATE_LABELS[task.state]
        url = reverse("task", args=[task.id])
        items.append({"text": task.title, "note": task.team.name, "state": label.text, "tone": label.tone, "url": url})
    return items


def _message_items(text: str) -> list[dict[str, str]]:
    """Return the link to the search of all conversations."""
    try:
        url = reverse("search", query={"q": text}) if text else ""
    except NoReverseMatch:  # this version has no search of messages
        url = ""
    return [{"text": f"Search messages for “{text}”", "url": url}] if url else []


def _page_items(request: UserHttpRequest, text: str) -> list[dict[str, str]]:
    wanted = text.casefold().split()
    found: list[dict[str, Any]] = []
    for place in PLACES:
        named = f"{place.title} {place.words}".casefold()
        if all(word in named for word in wanted) and (request.user.is_staff or not place.of_staff):
            found.append({"text": place.title, "url": reverse(place.name) + _FRAGMENTS.get(place.title, "")})
    return found


CLOSED_COOKIE: Final = "kandev_sessions"
"""Cookie of a browser in which the list is folded (``closed``), so that the page is laid out once."""


def list_context(request: UserHttpRequest, current: uuid.UUID | None) -> Mapping[str, Any]:
    """Return the variables of ``navigation/sessions.html``: the list in its groups, and the session on the page."""
    listed = services.list_sessions(request.user, current)
    groups = [(group.value, list(rows)) for group, rows in groupby(listed, lambda each: each.group)]
    return {"session_groups": groups, "current": current}


@never_cache
@require_GET
def session_list(request: UserHttpRequest) -> JsonResponse:
    """Return the list of sessions as HTML; ``?current=`` is the session whose page shows it."""
    try:
        current = uuid.UUID(request.GET.get("current", ""))
    except ValueError:
        current = None
    return part_response("session-list", "navigation/sessions.html", dict(list_context(request, current)), request)


@require_POST
def mark_session_seen(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """Record that the page has shown the conversation up to ``seq``. Also for viewers: it is their own mark."""
    seq = parse_number(request.POST.get("seq", ""))
    if seq is None:
        return JsonResponse({"code": "validation_error", "message": "seq must be a number."}, status=400)
    services.mark_seen(_find_session(request, task_id, session_id), request.user, seq)
    return HttpResponse(status=204)


@require_POST
def pin_session(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """Pin the session in the user's list, or unpin it. Also for viewers: it is their own mark."""
    session = _find_session(request, task_id, session_id)
    services.set_pinned(session, request.user, pinned=request.POST.get("pinned") == "1")
    return redirect_back(request, reverse("session", args=[task_id, session_id]))


def _find_session(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> TaskSession:
    found: TaskSession = get_object_or_404(
        TaskSession.objects.visible_to(request.user).filter(task_id=task_id), id=session_id
    )
    return found
