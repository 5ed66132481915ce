"""What an agent wrote, as HTML that cannot do anything: no scripts, no pictures, no foreign frames."""

from __future__ import annotations

from typing import Final

import nh3
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt

_PARSER: Final = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
_PARSER.disable("image")  # shown as a link: a picture from outside would tell its owner who reads

_TAGS: Final = frozenset(
    {"a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li"}
    | {"ol", "p", "pre", "s", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"}
)
_SCHEMES: Final = frozenset({"http", "https", "mailto"})


def render_markdown(text: str) -> SafeString:
    """Markdown as safe HTML; whatever is not plainly harmless comes out as text or not at all."""
    html = nh3.clean(
        _PARSER.render(text),
        tags=set(_TAGS),
        attributes={"a": {"href", "title"}, "ol": {"start"}},
        url_schemes=set(_SCHEMES),
        link_rel="noopener noreferrer nofollow",
    )
    for wide in ("<pre>", "<table>"):  # they scroll sideways, so the keyboard must reach them
        html = html.replace(wide, f'{wide[:-1]} tabindex="0">')
    return mark_safe(html)  # noqa: S308  (cleaned above)
