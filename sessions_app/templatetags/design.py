"""Template tags (``{% load design %}``) for components of the design system, which ``/design/`` shows."""

from __future__ import annotations

from typing import Any, Final

from django import template
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

register = template.Library()

ICONS: Final = {
    "agent": "M5 8.5A2.5 2.5 0 0 1 7.5 6h5A2.5 2.5 0 0 1 15 8.5v4a2.5 2.5 0 0 1-2.5 2.5h-5A2.5 2.5 0 0 1 5 12.5z"
    "M10 6V3.2M8 10v1M12 10v1M3 9.5v2M17 9.5v2",
    "attach": "M15.5 9.5l-5.7 5.7a3.6 3.6 0 0 1-5.1-5.1l6-6a2.4 2.4 0 0 1 3.4 3.4l-6 6a1.2 1.2 0 0 1-1.7-1.7l5.3-5.3",
    "bell": "M10 3a4.5 4.5 0 0 0-4.5 4.5c0 4-1.8 5-1.8 6h12.6c0-1-1.8-2-1.8-6A4.5 4.5 0 0 0 10 3z"
    "M8.4 16.2a1.7 1.7 0 0 0 3.2 0",
    "board": "M3.5 4.5h3.6v11H3.5zM8.2 4.5h3.6v7H8.2zM12.9 4.5h3.6v9h-3.6z",
    "chart": "M4 16.5h12.5M5.5 16V10M9 16V6M12.5 16V8.5M16 16V4",
    "check": "M4 10.5l4 4 8-9",
    "design": "M10 3l7 7-7 7-7-7zM10 7l3 3-3 3-3-3z",
    "find": "M9 14.5a5.5 5.5 0 1 0 0-11 5.5 5.5 0 0 0 0 11zM13 13l3.7 3.7",
    "help": "M10 17a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM8 8a2 2 0 1 1 2.8 1.9c-.6.3-.8.7-.8 1.4M10 13.8v.1",
    "key": "M7 12a3.5 3.5 0 1 1 3.2-5H17v3h-2v2h-2.5v-2h-2.3A3.5 3.5 0 0 1 7 12zM6.5 8.5v.1",
    "leave": "M8 4H4.5v12H8M12 6.5L15.5 10 12 13.5M15.5 10H8",
    "person": "M10 10a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM4 16.5c.5-3 3-4.5 6-4.5s5.5 1.5 6 4.5",
    "pin": "M7.5 3.5h5M8.5 3.5v5L6 11.5h8l-2.5-3v-5M10 11.5V17",
    "server": "M4 4h12v4.5H4zM4 11.5h12V16H4zM7 6.25v.1M7 13.75v.1",
    "settings": "M4 6h7M15 6h1M4 14h1M9 14h7M13 8a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM7 16a2 2 0 1 0 0-4 2 2 0 0 0 0 4z",
    "staff": "M10 3l6 2.2v4.3c0 3.8-2.5 6.3-6 7.5-3.5-1.2-6-3.7-6-7.5V5.2z",
    "sweep": "M16 8a6.2 6.2 0 0 0-11.2-1.5M4 3.5v3.3h3.3M4 12a6.2 6.2 0 0 0 11.2 1.5M16 16.5v-3.3h-3.3",
    "team": "M7.5 9.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM2.8 15.5c.4-2.6 2.3-3.8 4.7-3.8s4.3 1.2 4.7 3.8"
    "M13 9.5a2.2 2.2 0 1 0-.6-4.3M14 11.9c1.8.2 3 1.4 3.3 3.6",
    "workflow": "M4 4h4v4H4zM12 12h4v4h-4zM8 6h4a2 2 0 0 1 2 2v4",
}
"""SVG paths of the icons, drawn for this project as lines on a grid of 20 by 20."""


@register.simple_tag
def icon(name: str) -> SafeString:
    """Render an icon next to a word. It adds no information, so it is hidden from screen readers."""
    return format_html('<svg class="icon" viewBox="0 0 20 20" aria-hidden="true"><path d="{}"/></svg>', ICONS[name])


@register.simple_block_tag
def card(content: str, title: str = "", lead: str = "", name: str = "", tone: str = "") -> SafeString:
    """Render ``{% card title="…" lead="…" name="id" %}…{% endcard %}``: a section of a page with a heading."""
    context = {"content": content, "title": title, "lead": lead, "name": name or title.lower().replace(" ", "-")}
    return mark_safe(render_to_string("parts/card.html", {**context, "tone": tone}))  # noqa: S308 - rendered from templates


@register.simple_block_tag
def dialog(content: str, name: str, title: str) -> SafeString:
    """Render ``{% dialog name="id" title="…" %}…{% enddialog %}``: opened by ``data-opens="id"``, closed by Escape."""
    context: dict[str, Any] = {"content": content, "name": name, "title": title}
    return mark_safe(render_to_string("parts/dialog.html", context))  # noqa: S308 - rendered from templates


@register.filter
def initials(name: str) -> str:
    """Return the initials of a name: AL for ``Ada Lovelace``, A for ``ada``."""
    words = [word for word in str(name).replace(".", " ").replace("_", " ").split() if word]
    return "".join(word[0] for word in words[:1] + words[1:][-1:])
