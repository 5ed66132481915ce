"""The filter ``visible``: what agents, files and other people wrote, as a reader may see it."""

from __future__ import annotations

from typing import Any

from django import template

from sessions_app.domain import plain_text

register = template.Library()


@register.filter(is_safe=True)
def visible(value: Any) -> str:
    """``domain.plain_text.visible`` of whatever is to be shown; escaped as everything else."""
    return plain_text.visible(str(value))
