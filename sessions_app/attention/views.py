"""The inbox: everything that needs the user, grouped by task, the most urgent first."""

from __future__ import annotations

import uuid
from typing import Any, Final

from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.functional import SimpleLazyObject
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST, require_safe

from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.attention.rules.notices import LOOK_KINDS
from sessions_app.attention.services import inbox
from sessions_app.attention.services.wording import word_items
from sessions_app.models import AttentionItem
from sessions_app.pages.labels import ATTENTION_KIND_LABELS
from sessions_app.pages.shortcuts import redirect_back

MAX_ITEMS_SHOWN: Final = 200
"""Maximum number of items on the page."""
ITEM_MARKS: Final = {"acknowledge": inbox.acknowledge_item, "dismiss": inbox.dismiss_item}


@never_cache
@require_safe
def show_inbox(request: UserHttpRequest) -> HttpResponse:
    """Show the inbox; ``?mine=1`` limits it to the user's own sessions and workflows."""
    return render(request, "attention/inbox.html", inbox_context(request))


def inbox_context(request: UserHttpRequest) -> dict[str, Any]:
    """Return new and acknowledged items, each grouped by task or workflow."""
    mine = request.GET.get("mine") == "1"
    rows = inbox.open_items_for(request.user)
    if mine:
        rows = rows.filter(inbox.own_items(request.user))
    items = list(rows[: MAX_ITEMS_SHOWN + 1])
    word_items(items[:MAX_ITEMS_SHOWN])
    news = [item for item in items[:MAX_ITEMS_SHOWN] if item.acknowledged_at is None]  # type: ignore[attr-defined]
    seen = [item for item in items[:MAX_ITEMS_SHOWN] if item.acknowledged_at is not None]  # type: ignore[attr-defined]
    return {
        "mine": mine,
        "query": "?mine=1" if mine else "",
        "news": _group_items(news),
        "needs_count": len([item for item in news if item.kind not in LOOK_KINDS]),
        "looks_count": len([item for item in news if item.kind in LOOK_KINDS]),
        "seen": _group_items(seen),
        "seen_count": len(seen),
        "is_cut": len(items) > MAX_ITEMS_SHOWN,
    }


def _group_items(items: list[AttentionItem]) -> list[dict[str, Any]]:
    """Group items by task or workflow; groups are in the order of their first item."""
    found: dict[uuid.UUID, dict[str, Any]] = {}
    for item in items:
        about, may_open = item.about, item.may_open  # type: ignore[attr-defined]
        url = _item_url(item)
        first = reverse("task", args=[item.task_id]) if item.task_id else url
        group = found.setdefault(about.pk, {"about": about, "items": [], "url": first if may_open else ""})
        group["items"].append({"item": item, "word": ATTENTION_KIND_LABELS[item.kind], "url": url})
    return list(found.values())


def _item_url(item: AttentionItem) -> str:
    """Return the page that resolves the item; the admin for staff outside the team, who cannot open that page."""
    if item.may_open:  # type: ignore[attr-defined]
        return item.path
    return reverse("admin:sessions_app_tasksession_change", args=[item.session_id])


@never_cache
@require_GET
def inbox_updates(request: UserHttpRequest) -> JsonResponse:
    """Return the current inbox as HTML, with the number of new items."""
    html = render_to_string("attention/inbox_items.html", inbox_context(request), request)
    return JsonResponse({"parts": {"attention": html}, "count": inbox.count_unseen(request.user)})


@never_cache
@require_GET
def inbox_count(request: UserHttpRequest) -> JsonResponse:
    """Return the number of new items, for the header of every page."""
    return JsonResponse({"count": inbox.count_unseen(request.user)})


@require_POST
def mark_item(request: UserHttpRequest, item_id: uuid.UUID, what: str) -> HttpResponse:
    """Acknowledge or dismiss one item."""
    if what not in ITEM_MARKS:
        raise Http404(what)
    ITEM_MARKS[what](get_object_or_404(inbox.visible_items(request.user), id=item_id), request.user)
    return redirect_back(request, "attention")


@require_POST
def mark_all_seen(request: UserHttpRequest) -> HttpResponse:
    """Acknowledge every new item of the user."""
    for item in inbox.unseen_items_for(request.user):
        inbox.acknowledge_item(item, request.user)
    return redirect_back(request, "attention")


def attention_count(request: UserHttpRequest) -> dict[str, Any]:
    """Add ``attention_count`` to every template (a context processor); only a template that shows it runs the query."""
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return {}
    return {"attention_count": SimpleLazyObject(lambda: inbox.count_unseen(user))}
