"""Template tags (``{% load navigation %}``) for what the session page shows to move around."""

from __future__ import annotations

from typing import Any, cast

from django import template
from django.template.context import RequestContext

from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.models import SessionMark, TaskSession
from sessions_app.navigation.rules.shortcuts import SESSION_KEYS
from sessions_app.navigation.views import CLOSED_COOKIE, list_context

register = template.Library()


@register.inclusion_tag("navigation/keys.html")
def session_keys() -> dict[str, Any]:
    """Render the list of the session page's keyboard shortcuts, which ``keys.js`` reads."""
    return {"shortcuts": SESSION_KEYS}


@register.simple_tag(takes_context=True)
def sessions_folded(context: RequestContext) -> str:
    """Return the attribute of a page whose user has folded the list of sessions."""
    return "data-folded" if context.request.COOKIES.get(CLOSED_COOKIE) == "closed" else ""


@register.inclusion_tag("navigation/session_panel.html", takes_context=True)
def session_panel(context: RequestContext, session: TaskSession) -> dict[str, Any]:
    """Render the list of sessions beside the conversation of ``session``."""
    request = cast(UserHttpRequest, context.request)
    mark = SessionMark.objects.filter(session=session, user=request.user).first()
    return {
        **list_context(request, session.id),
        "request": request,
        "csrf_token": context.get("csrf_token"),
        "task_id": session.task_id,
        "cookie": CLOSED_COOKIE,
        "seen_seq": mark.seen_seq if mark is not None else 0,
    }
