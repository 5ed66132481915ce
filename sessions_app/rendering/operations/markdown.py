"""Markdown as safe HTML. The parser takes quadratic time for some texts, so this runs in a limited process only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any, Final
from urllib.parse import urlsplit

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token

from sessions_app.redaction.visible_text import make_visible
from sessions_app.rendering.operations.highlighting import CLASSES, highlight_code

CODE_LIMIT: Final = 20_000
"""Maximum number of characters of a code block that is highlighted."""

_TAGS: Final = frozenset(
    {"a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li"}
    | {"ol", "p", "pre", "s", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"}
)
_SCHEMES: Final = frozenset({"http", "https", "mailto"})
_HOST: Final = "host"
"""CSS class of the host name that is shown after a link."""
_SLASHES: Final = re.compile(r"^(https?):[/\\]*", re.IGNORECASE)


def _highlight_code(code: str, language: str, attributes: str) -> str:
    if len(code) <= CODE_LIMIT:
        return highlight_code(code, language)
    return escape(code)


def _render_link_close(renderer: Any, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:
    """Close a link. Unless its text is its URL, its host follows, so that a text cannot hide where the link leads."""
    start = next(index for index in range(at, -1, -1) if tokens[index].type == "link_open")
    href = str(tokens[start].attrs.get("href", ""))
    text = "".join(token.content for token in tokens[start + 1 : at])
    host = _host_of(href)
    if not host or text == href:
        return "</a>"
    return f'</a> <span class="{_HOST}">{escape(host)}</span>'


def _host_of(href: str) -> str:
    """Return the host that a browser would open: it takes any number of slashes behind ``https:``, even none."""
    try:
        return urlsplit(_SLASHES.sub(r"\1://", href)).netloc.rpartition("@")[2]
    except ValueError:
        return ""


_PARSER: Final = MarkdownIt("commonmark", {"html": False, "breaks": True, "highlight": _highlight_code})
_PARSER.enable(["table", "strikethrough"]).disable("image")  # loading an image tells its host who reads the page
_PARSER.add_render_rule("link_close", _render_link_close)


def _filter_attribute(tag: str, name: str, value: str) -> str | None:
    """Remove links into this site: clicked, they would be requests with the reader's rights."""
    is_link = tag == "a" and name == "href"
    if is_link and not value.lower().startswith(("http://", "https://", "mailto:")):
        return None
    return value


def render_markdown(text: str) -> str:
    """Render Markdown as safe HTML. Anything not known to be harmless becomes text or is removed."""
    html = nh3.clean(
        _PARSER.render(make_visible(text)),
        tags=set(_TAGS),
        attributes={"a": {"href", "title"}, "ol": {"start"}},
        attribute_filter=_filter_attribute,
        allowed_classes={"span": {_HOST, *CLASSES}},
        url_schemes=set(_SCHEMES),
        link_rel="noopener noreferrer nofollow",
        set_tag_attribute_values={"a": {"target": "_blank"}},
    )
    for wide in ("<pre>", "<table>"):  # these scroll horizontally, so the keyboard must be able to focus them
        html = html.replace(wide, f'{wide[:-1]} tabindex="0">')
    return html
