"""The inbox: everything that needs the user, grouped by task, the most urgent first."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.functional import SimpleLazyObject
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST, require_safe

from sessions_app.accounts.authorization import writable_teams
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.accounts.sign_ins import sign_in_mark
from sessions_app.attention.rules.notices import ATTENTION_KIND_LABELS, LOOK_KINDS
from sessions_app.attention.services import inbox
from sessions_app.attention.services.wording import word_items
from sessions_app.models import AttentionItem
from sessions_app.pages.shortcuts import redirect_back
from sessions_app.sessions.rules.situation_facts import Label
from sessions_app.waits.reader import waits_of_items, waits_without_item
from sessions_app.waits.rules.open_waits import OpenWaitRecord

MAX_ITEMS_SHOWN: Final = 200
"""Maximum number of items on the page."""
MAX_WAITS_SHOWN: Final = 20
"""Maximum number of other waits on the page, which links to the page of all."""
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
    waits = waits_of_items(items[:MAX_ITEMS_SHOWN])
    only_own = {"session__owner": request.user.pk} if mine else {}
    writable = set(writable_teams(request.user).values_list("id", flat=True))
    new_items = [item for item in items[:MAX_ITEMS_SHOWN] if item.acknowledged_at is None]  # type: ignore[attr-defined]
    seen_items = [item for item in items[:MAX_ITEMS_SHOWN] if item.acknowledged_at is not None]  # type: ignore[attr-defined]
    review_count = sum(item.kind in LOOK_KINDS for item in new_items)
    query = ""
    if mine:
        query = "?mine=1"
    return {
        "mine": mine,
        "query": query,
        "new_groups": _group_items(new_items, waits, writable),
        "action_count": len(new_items) - review_count,
        "review_count": review_count,
        "seen_groups": _group_items(seen_items, waits, writable),
        "seen_count": len(seen_items),
        "is_cut": len(items) > MAX_ITEMS_SHOWN,
        "other_waits": waits_without_item(request.user, MAX_WAITS_SHOWN, **only_own),
    }


@dataclass(frozen=True, slots=True)
class ItemCard:
    """An item on the page."""

    item: Any
    """With the annotations of ``visible_items``."""
    wait: OpenWaitRecord | None = None
    """The open wait that it is about."""
    may_write: bool = False
    """Whether the user may act in its team."""

    @property
    def label(self) -> Label:
        """Its kind in words."""
        return ATTENTION_KIND_LABELS[self.item.kind]

    @property
    def url(self) -> str:
        """The page that resolves the item; the admin for staff outside the team, who cannot open that page."""
        if self.item.may_open:
            return str(self.item.path)
        return reverse("admin:sessions_app_tasksession_change", args=[self.item.session_id])

    @property
    def answer_url(self) -> str:
        """The page on which the user can answer what the agent asks; empty if it asks nothing."""
        if self.may_write:
            return str(self.item.answer_path)
        return ""


@dataclass(frozen=True, slots=True)
class ItemGroup:
    """The items about one task or workflow, or about the deployment."""

    title: str
    team: str
    """The name of its team; empty for what is about the deployment."""
    cards: list[ItemCard]

    @property
    def url(self) -> str:
        """The page of the task or workflow; empty if the user cannot open it."""
        first = self.cards[0]
        if not first.item.may_open:
            return ""
        if first.item.task_id is not None:
            return reverse("task", args=[first.item.task_id])
        return first.url


def _group_items(
    items: list[AttentionItem], waits: Mapping[str, OpenWaitRecord], writable: Collection[int]
) -> list[ItemGroup]:
    """Group items by task or workflow; groups are in the order of their first item."""
    groups: dict[object, ItemGroup] = {}
    for item in items:
        group = groups.setdefault(item.group_key, ItemGroup(item.title, item.team_name, []))
        may_write = not item.is_of_deployment and item.about.team.pk in writable
        group.cards.append(ItemCard(item, waits.get(item.key), may_write=may_write))
    return list(groups.values())


@never_cache
@require_GET
def inbox_updates(request: UserHttpRequest) -> JsonResponse:
    """Return the current inbox as HTML, with the number of new items."""
    html = render_to_string("attention/inbox_items.html", inbox_context(request), request)
    return JsonResponse({"parts": {"attention": html}, "count": inbox.count_unseen(request.user)})


@never_cache
@require_GET
def inbox_count(request: UserHttpRequest) -> JsonResponse:
    """Return the number of new items, for the header of every page, and what a browser shows as notifications.

    ``sign_in`` differs after each sign-in: the browser tells then that it is still to be notified.
    """
    notices = [
        {
            "id": item.notice_id,
            "tag": str(item.id),
            "what": item.what,
            "title": item.title,
            "url": item.answer_path or item.path,
        }
        for item in inbox.browser_notices(request.user)
    ]
    sign_in = sign_in_mark(request.session.session_key or "")
    return JsonResponse({"count": inbox.count_unseen(request.user), "notices": notices, "sign_in": sign_in})


@require_POST
def mark_item(request: UserHttpRequest, item_id: uuid.UUID, action: str) -> HttpResponse:
    """Acknowledge or dismiss one item."""
    if action not in ITEM_MARKS:
        raise Http404(action)
    ITEM_MARKS[action](get_object_or_404(inbox.visible_items(request.user), id=item_id), request.user)
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
