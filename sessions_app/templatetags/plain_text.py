"""The filters ``visible`` and ``sentence``: what agents, files and other people wrote, as a reader may see it."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

from django import template
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from sessions_app.domain import sanitizing

register = template.Library()


_COMMAND: Final = re.compile("`([^`\n]{1,300})`")
_CLOCK: Final = re.compile(r"\b([0-2]\d:[0-5]\d:[0-5]\d) UTC\b")


@register.filter(needs_autoescape=True)
def sentence(value: Any, at: datetime | None = None, *, autoescape: bool = True) -> SafeString:
    """A sentence for people: commands in backquotes are set as code, and the clock of ``at`` as the reader's own."""
    html: str = escape(sanitizing.make_visible(str(value)))
    html = _COMMAND.sub(r"<code>\1</code>", html)
    if at is not None:
        html = _CLOCK.sub(rf'<time datetime="{at.isoformat()}" data-clock>\1 UTC</time>', html)
    return mark_safe(html)  # noqa: S308  (escaped above; what is put around it is ours)


@register.filter(is_safe=True)
def visible(value: Any) -> str:
    """``domain.plain_text.visible`` of whatever is to be shown; escaped as everything else."""
    return sanitizing.make_visible(str(value))
