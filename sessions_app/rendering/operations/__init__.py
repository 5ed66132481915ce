"""The operations of ``TEXT_POOL``: everything that reads text of agents or members for people or for other agents."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sessions_app.attention.rules.quotations import show_quotations
from sessions_app.confined.link import ClientLink
from sessions_app.redaction.redactor import redact
from sessions_app.rendering.operations.highlighting import LANGUAGES, highlight_code, highlight_file
from sessions_app.rendering.operations.histories import build_history
from sessions_app.rendering.operations.line_diffs import compare_texts
from sessions_app.rendering.operations.markdown import render_markdown
from sessions_app.rendering.operations.tool_calls import FOR_REVIEW, IN_CONVERSATION, describe_tool_call
from sessions_app.search.rules.documents import document_text
from sessions_app.search.rules.words import folded_text


def markdown(link: ClientLink, text: str) -> dict[str, Any]:
    """Return a text’s Markdown as HTML."""
    return {"html": render_markdown(text)}


def highlighted_file(link: ClientLink, code: str, path: str) -> dict[str, Any]:
    """Return the content of a file as HTML."""
    return {"html": highlight_file(code, path)}


def tool_call(link: ClientLink, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the conversation shows of a tool call."""
    return describe_tool_call(payload, IN_CONVERSATION)


def reviewed_call(link: ClientLink, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is shown of a tool call to those who may allow it."""
    return describe_tool_call(payload, FOR_REVIEW)


def compared_texts(link: ClientLink, before: str, after: str) -> dict[str, Any]:
    """Return the differences of two texts, line by line."""
    return compare_texts(before, after)


def matched_patterns(link: ClientLink, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return for each pattern and text whether the pattern occurs in it; null if Python does not understand it."""
    return {"matches": [_matches(pattern, text) for pattern, text in pairs]}


def _matches(pattern: str, text: str) -> bool | None:
    try:
        return re.search(pattern, text) is not None
    except (re.error, OverflowError, RecursionError):
        return None


def quotations(link: ClientLink, quoted: str, secrets: Sequence[str]) -> dict[str, Any]:
    """Return the quotations of an inbox item without secrets, in their order."""
    return {"shown": show_quotations(quoted, secrets)}


def searchable_text(link: ClientLink, text: str, secrets: Sequence[str]) -> dict[str, Any]:
    """Return what the search indexes of a text, without secrets, and its words as they are compared."""
    shown = document_text(text, secrets)
    return {"text": shown, "words": folded_text(shown)}


def any_operation(link: ClientLink, operation: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Run an operation by its name, so that a batch can mix them."""
    return OPERATIONS[operation](link, **arguments)


OPERATIONS: Final[Mapping[str, Callable[..., dict[str, Any]]]] = {
    "markdown": markdown,
    "highlighted_file": highlighted_file,
    "tool_call": tool_call,
    "reviewed_call": reviewed_call,
    "compared_texts": compared_texts,
    "matched_patterns": matched_patterns,
    "build_history": build_history,
    "quotations": quotations,
    "searchable_text": searchable_text,
    "any_operation": any_operation,
}


def preload() -> None:
    """Import and build everything that children need, because they cannot open files."""
    redact("")
    unicodedata.normalize("NFKC", "")
    for language in LANGUAGES:
        highlight_code("a = 1\n", language)
    render_markdown("# A\n\n|a|\n|-|\n|b|\n\n[c](https://xn--bcher-kva.example/ä) ```d```")
    highlight_file("a\n", "a.py")
