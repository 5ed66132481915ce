"""What an agent wrote, as HTML that can neither do anything nor pass for something else.

No scripts, no pictures, no foreign frames; a link says where it leads, and leads out of the site alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import nh3
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt
from markdown_it.token import Token

from sessions_app.domain.plain_text import visible
from sessions_app.services.highlighting import CLASSES, highlighted

CODE_LIMIT: Final = 20_000
"""Characters of a block of code that is shown in colours."""

_TAGS: Final = frozenset(
    {"a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li"}
    | {"ol", "p", "pre", "s", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"}
)
_SCHEMES: Final = frozenset({"http", "https", "mailto"})
_HOST: Final = "host"
"""Class of the word behind a link that says where it leads."""


def _coloured(code: str, language: str, attributes: str) -> str:
    return highlighted(code, language) if len(code) <= CODE_LIMIT else str(escape(code))


def _end_of_link(renderer: Any, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:
    """Close a link; where its words are not its address, its host follows them."""
    start = next(back for back in range(at, -1, -1) if tokens[back].type == "link_open")
    href, words = str(tokens[start].attrs.get("href", "")), "".join(token.content for token in tokens[start + 1 : at])
    host = _host_of(href)
    said = f' <span class="{_HOST}">{escape(host)}</span>' if host and words != href else ""
    return f"</a>{said}"


def _host_of(href: str) -> str:
    try:
        return urlsplit(href).netloc.rpartition("@")[2]
    except ValueError:
        return ""


def _made() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True, "highlight": _coloured})
    parser.enable(["table", "strikethrough"]).disable("image")  # a picture would tell its owner who reads
    parser.add_render_rule("link_close", _end_of_link)
    return parser


_PARSER: Final = _made()


def _kept(tag: str, name: str, value: str) -> str | None:
    """Links lead to other sites alone: one into this site would act in the reader's name."""
    is_ours = tag == "a" and name == "href" and not value.lower().startswith(("http://", "https://", "mailto:"))
    return None if is_ours else value


def render_markdown(text: str) -> SafeString:
    """Markdown as safe HTML; whatever is not plainly harmless comes out as text or not at all."""
    html = nh3.clean(
        _PARSER.render(visible(text)),
        tags=set(_TAGS),
        attributes={"a": {"href", "title"}, "ol": {"start"}},
        attribute_filter=_kept,
        allowed_classes={"span": {_HOST, *CLASSES}},
        url_schemes=set(_SCHEMES),
        link_rel="noopener noreferrer nofollow",
        set_tag_attribute_values={"a": {"target": "_blank"}},
    )
    for wide in ("<pre>", "<table>"):  # they scroll sideways, so the keyboard must reach them
        html = html.replace(wide, f'{wide[:-1]} tabindex="0">')
    return mark_safe(html)  # noqa: S308  (cleaned above)
