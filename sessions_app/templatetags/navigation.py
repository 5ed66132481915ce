"""Template tags (``{% load navigation %}``) for what the session page shows to move around."""

from __future__ import annotations

from typing import Any

from django import template

from sessions_app.navigation.rules.shortcuts import SESSION_KEYS

register = template.Library()


@register.inclusion_tag("navigation/keys.html")
def session_keys() -> dict[str, Any]:
    """Render the list of the session page's keyboard shortcuts, which ``keys.js`` reads."""
    return {"shortcuts": SESSION_KEYS}
