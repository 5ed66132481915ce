"""Template filters for texts of strangers: ``visible``, ``beginning``, ``sentence``, and ``exact`` for form values."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

from django import template
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from sessions_app.redaction.visible_text import make_visible, refer_to_invisible

register = template.Library()


_COMMAND: Final = re.compile("`([^`\n]{1,300})`")
_CLOCK: Final = re.compile(r"\b((?:\d{4}-\d\d-\d\d )?[0-2]\d:[0-5]\d:[0-5]\d) UTC\b")


@register.filter(needs_autoescape=True)
def sentence(value: Any, at: datetime | None = None, *, autoescape: bool = True) -> SafeString:
    """Render a sentence as HTML: commands in backquotes as code, and the time of ``at`` in the reader's zone."""
    html: str = escape(make_visible(str(value)))
    html = _COMMAND.sub(r"<code>\1</code>", html)
    if at is not None:
        html = _CLOCK.sub(rf'<time datetime="{at.isoformat()}" data-exact>\1 UTC</time>', html)
    return mark_safe(html)  # noqa: S308  (escaped above; the tags around it are ours)


@register.filter
def exact(value: Any) -> SafeString:
    """Return a value that a form sends back unchanged: its invisible characters become references of HTML."""
    return mark_safe(refer_to_invisible(escape(str(value))))  # noqa: S308 - escaped


@register.filter(is_safe=True)
def visible(value: Any) -> str:
    """Return the value with invisible characters made visible; Django escapes it as usual."""
    return make_visible(str(value))


@register.filter(is_safe=True)
def beginning(value: Any, limit: int) -> str:
    """Return at most ``limit`` characters of the value, with invisible ones made visible.

    Django’s ``truncatechars`` normalizes the whole text first, which takes minutes for some texts.
    """
    text = str(value)
    if len(text) > limit:
        text = f"{text[: limit - 1]}…"
    return make_visible(text)
