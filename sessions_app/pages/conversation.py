"""The conversation as HTML: messages, Markdown and tool calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from itertools import islice
from typing import Any, Final
from urllib.parse import urlsplit

import nh3
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt
from markdown_it.token import Token

from sessions_app.domain.sanitizing import make_visible
from sessions_app.models import Message, TaskSession
from sessions_app.pages.labels import tool_status_label
from sessions_app.services.highlighting import CLASSES, highlight_code

_DIGEST: Final = re.compile("[0-9a-f]{64}")
CODE_LIMIT: Final = 20_000
"""Maximum number of characters of a code block that is highlighted."""

_TAGS: Final = frozenset(
    {"a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li"}
    | {"ol", "p", "pre", "s", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"}
)
_SCHEMES: Final = frozenset({"http", "https", "mailto"})
_HOST: Final = "host"
"""CSS class of the host name that is shown after a link."""


def _highlight_code(code: str, language: str, attributes: str) -> str:
    return highlight_code(code, language) if len(code) <= CODE_LIMIT else str(escape(code))


def _render_link_close(renderer: Any, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:
    """Close a link. Unless its text is its URL, its host follows, so that a text cannot hide where the link leads."""
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


_PARSER: Final = MarkdownIt("commonmark", {"html": False, "breaks": True, "highlight": _highlight_code})
_PARSER.enable(["table", "strikethrough"]).disable("image")  # loading an image tells its host who reads the page
_PARSER.add_render_rule("link_close", _render_link_close)


def _filter_attribute(tag: str, name: str, value: str) -> str | None:
    """Remove links into this site: clicked, they would be requests with the reader's rights."""
    is_ours = tag == "a" and name == "href" and not value.lower().startswith(("http://", "https://", "mailto:"))
    return None if is_ours else value


def render_markdown(text: str) -> SafeString:
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
    return mark_safe(html)  # noqa: S308  (cleaned above)


TOOL_TEXT_LIMIT: Final = 20_000
"""Maximum number of characters that are shown of a tool's input or output."""
DIFF_LINES: Final = 2_000
"""Maximum number of lines of a file that are compared line by line."""
_DIFF_LINE_KINDS: Final = {"+": "added", "-": "gone", "@": "hunk"}


def tool_call_context(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return title, status label, places, input, outputs and diffs of a tool call, sanitized for the page."""
    outputs = [_shorten(text) for text in _outputs(payload) if text]
    return {
        "title": make_visible(str(payload.get("title") or payload.get("tool_call_id") or "Tool call")),
        "word": tool_status_label(make_visible(str(payload.get("status") or ""))[:40]),
        "places": [make_visible(str(place.get("path") or "")) for place in only_dicts(payload.get("locations"))],
        "input": _shorten(_as_text(payload.get("raw_input"))),
        "outputs": outputs,
        "diffs": [_diff(part) for part in only_dicts(payload.get("content")) if part.get("type") == "diff"],
    }


def only_dicts(value: Any) -> Iterable[dict[str, Any]]:
    """Return the objects in a list that an agent sent. Agents can send anything, so other values are dropped."""
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


def _outputs(payload: Mapping[str, Any]) -> list[str]:
    texts = [_part_text(part) for part in only_dicts(payload.get("content"))]
    return texts if any(texts) else [_as_text(payload.get("raw_output"))]


def _part_text(part: dict[str, Any]) -> str:
    content = part.get("content")
    inner = content if isinstance(content, dict) else part
    return str(inner["text"]) if isinstance(inner.get("text"), str) else ""


def _diff(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the diff of one file: ``{path, is_new, added, gone, lines: [(kind, text)]}``."""
    old, new = (
        _shorten(_as_text(part.get(first) or part.get(second)))
        for first, second in (("oldText", "old_text"), ("newText", "new_text"))
    )
    lines = list(_diff_lines(old, new))
    kinds = [kind for kind, _ in lines]
    return {
        "path": make_visible(str(part.get("path") or "")),
        "is_new": not old,
        "added": kinds.count("added"),
        "gone": kinds.count("gone"),
        "lines": lines,
    }


def _diff_lines(old: str, new: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) for the lines of a unified diff, without its file header."""
    before, after = old.splitlines(), new.splitlines()
    if max(len(before), len(after)) > DIFF_LINES:  # comparing takes quadratic time
        yield from (("gone", f"-{line}") for line in before)
        yield from (("added", f"+{line}") for line in after)
        return
    for line in islice(unified_diff(before, after, lineterm=""), 2, None):
        yield _DIFF_LINE_KINDS.get(line[:1], ""), line


def _as_text(value: Any) -> str:
    if value is None or value in ("", {}, []):
        return ""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def _shorten(text: str) -> str:
    """Return the beginning of a text with invisible characters visible, and how much was cut."""
    more = len(text) - TOOL_TEXT_LIMIT
    return make_visible(text) if more <= 0 else f"{make_visible(text[:TOOL_TEXT_LIMIT])}\n… ({more} characters more)"


PAGE_SIZE: Final = 200
"""Messages on one page of the conversation."""
GROWING_LIMIT: Final = 64 * 1024
"""Characters that are shown of an incomplete message, from its end: each change sends all of it again."""
MARKDOWN_LIMIT: Final = 128 * 1024
"""Maximum number of characters that are rendered as Markdown; a longer text is shown unformatted."""
MESSAGES_AFTER_TARGET: Final = PAGE_SIZE // 4
"""Messages shown after the one that a link names, as context."""


def last_messages(session: TaskSession, before: int | None = None) -> tuple[list[Message], bool]:
    """Return the newest messages before the number ``before``, oldest first, and whether there are older ones."""
    rows = session.messages.order_by("-seq")
    if before is not None:
        rows = rows.filter(seq__lt=before)
    found = list(rows[: PAGE_SIZE + 1])
    return found[:PAGE_SIZE][::-1], len(found) > PAGE_SIZE


def messages_around(session: TaskSession, seq: int) -> tuple[list[Message], bool, bool]:
    """Return a page with the message ``seq``, whether there are older ones, and whether there are newer ones."""
    newer = list(session.messages.filter(seq__gt=seq).order_by("seq")[: MESSAGES_AFTER_TARGET + 1])
    until = newer[MESSAGES_AFTER_TARGET].seq if len(newer) > MESSAGES_AFTER_TARGET else None
    return (*last_messages(session, until), until is not None)


def changed_messages(session: TaskSession, after: int) -> tuple[list[Message], bool]:
    """Return the messages with changes after the number ``after``, and whether there are more than one page of them."""
    found = list(session.messages.filter(updated_seq__gt=after).order_by("updated_seq")[: PAGE_SIZE + 1])
    return found[:PAGE_SIZE], len(found) > PAGE_SIZE


def render_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return each message as ``{id, seq, updated_seq, html}``, all from one database snapshot.

    The browser appends what the socket sends after ``updated_seq``. An older or newer text would lose or repeat some.
    """
    texts = _reload_texts(messages)
    return [
        {
            "id": str(message.id),
            "seq": message.seq,
            "updated_seq": message.updated_seq,
            "html": render_to_string("session/message.html", _message_context(message, texts[message.id])),
        }
        for message in messages
    ]


def _reload_texts(messages: Sequence[Message]) -> dict[Any, str]:
    """Refresh the messages and return their texts by id.

    One statement reads both, so that each text belongs to its ``updated_seq`` even while the agent is writing.
    """
    by_id = {message.id: message for message in messages}
    texts: dict[Any, list[str]] = {key: [] for key in by_id}
    rows = Message.objects.filter(id__in=by_id).order_by("id", "parts__number")
    for key, updated_seq, complete, payload, text in rows.values_list(
        "id", "updated_seq", "complete", "payload", "parts__text"
    ):
        message = by_id[key]
        message.updated_seq, message.complete, message.payload = updated_seq, complete, payload
        texts[key].append(text or "")
    return {key: "".join(parts) for key, parts in texts.items()}


def _message_context(message: Message, text: str) -> dict[str, Any]:
    shown: dict[str, Any] = {"message": message, "kind": _template_name(message)}
    if message.role in ("agent", "thought"):
        shown["tail"] = text[len(text.rstrip()) :]
        shown |= _render_text(text, complete=message.complete)
    elif message.role == "tool":
        shown |= tool_call_context(message.payload)
    elif shown["kind"] == "permission":
        shown["permission"] = message.payload["permission"]
    elif shown["kind"] == "question":
        shown |= _question_context(message.payload["question"])
    elif shown["kind"] == "plan":
        shown |= _plan_context(message.payload["plan"])
    else:
        shown["text"] = make_visible(text)
        shown["files"] = attached_files(message.session, message.payload.get("attachments"))
    return shown


def attached_files(session: TaskSession, described: Any) -> list[dict[str, Any]]:
    """Return the files of a prompt as ``{name, url, is_image, size}``; the URL is empty if no content is known."""
    return [
        {
            "name": make_visible(str(each.get("name") or "file")),
            "url": _content_url(session, str(each.get("sha256", ""))),
            "is_image": str(each.get("media_type", "")).startswith("image/"),
            "size": each["size"] if isinstance(each.get("size"), int) else None,
        }
        for each in only_dicts(described)
    ]


def _content_url(session: TaskSession, digest: str) -> str:
    known = _DIGEST.fullmatch(digest)
    return reverse("attachment", args=(session.task_id, session.id, digest)) if known else ""


def _template_name(message: Message) -> str:
    """Return the name of the template under ``session/messages/`` for a message."""
    if message.role != "status":
        return str(message.role)
    for name in ("plan", "permission", "question"):
        if name in message.payload:
            return name
    return "error" if message.payload.get("level") == "error" else "note"


def _render_text(text: str, *, complete: bool) -> dict[str, Any]:
    if not complete and len(text) > GROWING_LIMIT:
        return {"plain": make_visible(text[-GROWING_LIMIT:]), "cut": True}
    if len(text) > MARKDOWN_LIMIT:
        return {"plain": make_visible(text)}
    return {"html": render_markdown(text)}


_QUESTION_ENDS: Final = {
    "answered": "Answered",
    "declined": "Declined",
    "withdrawn": "The agent withdrew its question",
}
_CANCEL_REASONS: Final = {
    "agent_gone": "The agent ended before it got an answer",
    "timeout": "Nobody answered in time",
    "turn_cancelled": "The turn was cancelled before anyone answered",
    "stopped": "The agent was stopped before anyone answered",
    "completed": "The agent reports that this is done",
    "": "Dismissed",
}


def _question_context(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a question ended, and whether parts of its answer are not kept."""
    status, reason = str(question.get("status", "")), str(question.get("reason", ""))
    ended = _CANCEL_REASONS["completed"] if reason == "completed" else _QUESTION_ENDS.get(status)
    typed = status == "answered" and bool(question.get("typed"))
    return {"question": question, "ended": ended or _CANCEL_REASONS.get(reason, "Cancelled"), "typed": typed}


def _plan_context(entries: Any) -> dict[str, Any]:
    """Return the steps of a plan, each ``{text, status}``, and how many of them are done."""
    steps = [
        {"text": make_visible(str(entry.get("content", ""))), "status": str(entry.get("status", "pending"))}
        for entry in only_dicts(entries)
    ]
    return {"steps": steps, "done": sum(step["status"] == "completed" for step in steps)}
