"""The search page. It is a form that is sent by GET, so that a search has an address, and needs no script."""

from __future__ import annotations

import uuid
from typing import Any, Final

from django.contrib.auth.models import User
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.accounts.team_scope import teams_of
from sessions_app.kernel.services.errors import SessionsError
from sessions_app.models import TaskSession
from sessions_app.search.forms import ORDERS, STATES, SearchForm
from sessions_app.search.rules.documents import DocumentKind
from sessions_app.search.services import BY_NAME, Order, SearchFilter, SearchPage, index_state, search
from sessions_app.sessions.services.queries import visible_sessions

WRITERS: Final = (
    (DocumentKind.USER.value, "Prompts"),
    (DocumentKind.AGENT.value, "Answers of agents"),
    (DocumentKind.TOOL.value, "Tool calls"),
    (DocumentKind.TASK.value, "Tasks"),
)
MOST_NAMES: Final = 100
"""Members that the page offers as authors."""


@never_cache
@require_safe
def show_search(request: UserHttpRequest) -> HttpResponse:
    """Show the form, and the results of ``?q=``; ``?session=`` searches one conversation."""
    form = SearchForm(request.GET)
    form.is_valid()  # what is not valid is left out, and the form shows what was searched
    values = form.cleaned_data
    session = _queried_session(request, values.get("session"))
    text, problem = values.get("q", ""), ""
    if "q" in form.errors:
        problem = str(form.errors["q"][0])
    where = SearchFilter(values.get("session"), None, values.get("state", ""), values.get("who", ""))
    page = None
    if text:
        try:
            page = search(
                request.user, text, where, Order(values.get("order") or "newest"), number=values.get("page") or 1
            )
        except SessionsError as error:
            problem = error.message
    context = {
        "text": text or request.GET.get("q", ""),
        "where": where,
        "order": values.get("order") or "newest",
        "session": session,
        "page": page,
        "index": page.index if page else index_state(request.user, where.session),
        "problem": problem,
        "writers": WRITERS,
        "names": _member_names(request.user),
        "states": STATES,
        "orders": ORDERS,
        **_page_links(request, page),
    }
    return render(request, "search/search.html", context)


def _queried_session(request: UserHttpRequest, session_id: uuid.UUID | None) -> TaskSession | None:
    """Return the session in the query string; None without one. Raises Http404 for a session of others."""
    if session_id is None:
        return None
    found: TaskSession = get_object_or_404(visible_sessions(request.user), id=session_id)
    return found


def _member_names(user: User) -> list[tuple[str, str]]:
    """Return the members of the user's teams as value and name of a choice."""
    names = User.objects.filter(groups__in=teams_of(user)).order_by("username").distinct()
    return [(f"{BY_NAME}{name}", name) for name in names.values_list("username", flat=True)[:MOST_NAMES]]


def _page_links(request: UserHttpRequest, page: SearchPage | None) -> dict[str, Any]:
    """Return the addresses of the pages before and after this one; empty ones for those that do not exist."""
    links = {"newer": "", "older": ""}
    if page is None:
        return links
    query = request.GET.copy()
    if page.number > 1:
        query["page"] = str(page.number - 1)
        links["newer"] = f"{reverse('search')}?{query.urlencode()}"
    if page.next_page is not None:
        query["page"] = str(page.next_page)
        links["older"] = f"{reverse('search')}?{query.urlencode()}"
    return links
