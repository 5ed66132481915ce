"""The conversation as pieces of HTML, one for each message; used by the page and by its live updates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from django.template.loader import render_to_string

from sessions_app.models import Message, TaskSession
from sessions_app.views.markdown import render_markdown
from sessions_app.views.wording import tool_word

PAGE: Final = 200
"""Messages at a time; the page offers the earlier ones."""
GROWING_LIMIT: Final = 64 * 1024
"""Of a longer text that still grows only so much of its end is shown, for it is sent again at each change."""
MARKDOWN_LIMIT: Final = 256 * 1024
"""A longer text is shown as it is."""
TOOL_LIMIT: Final = 20_000
"""Characters of a tool's input or output that are shown."""


def last_messages(session: TaskSession, before: int | None = None) -> tuple[list[Message], bool]:
    """The newest messages (older than ``before``), oldest first, and whether there are still older ones."""
    rows = session.messages.order_by("-seq")
    if before is not None:
        rows = rows.filter(seq__lt=before)
    found = list(rows[: PAGE + 1])
    return found[:PAGE][::-1], len(found) > PAGE


def changed_messages(session: TaskSession, after: int) -> tuple[list[Message], bool]:
    """The messages that changed behind ``after``, and whether there are more of them than a page."""
    found = list(session.messages.filter(updated_seq__gt=after).order_by("updated_seq")[: PAGE + 1])
    return found[:PAGE], len(found) > PAGE


def rendered(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Each message as ``{id, seq, updated_seq, html}``, all as of one moment.

    The socket appends behind ``updated_seq``, so the text must be that of ``updated_seq`` exactly.
    """
    texts = _refreshed(messages)
    return [
        {
            "id": str(message.id),
            "seq": message.seq,
            "updated_seq": message.updated_seq,
            "html": render_to_string("session/message.html", _context(message, texts[message.id])),
        }
        for message in messages
    ]


def _refreshed(messages: Sequence[Message]) -> dict[Any, str]:
    """Bring the messages up to date with their texts by one statement; the texts by id."""
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


def _context(message: Message, text: str) -> dict[str, Any]:
    shown: dict[str, Any] = {"message": message, "text": text, "kind": _kind(message)}
    if message.role in ("agent", "thought"):
        shown["tail"] = text[len(text.rstrip()) :]
        shown |= _prose(text, complete=message.complete)
    elif message.role == "tool":
        shown |= _tool(message.payload)
    elif shown["kind"] == "plan":
        shown["steps"] = [_step(entry) for entry in _dicts(message.payload["plan"])]
    return shown


def _kind(message: Message) -> str:
    """Which of the templates under ``session/messages/`` shows the message."""
    if message.role != "status":
        return str(message.role)
    if "plan" in message.payload:
        return "plan"
    return "error" if message.payload.get("level") == "error" else "note"


def _prose(text: str, *, complete: bool) -> dict[str, Any]:
    if not complete and len(text) > GROWING_LIMIT:
        return {"plain": text[-GROWING_LIMIT:], "cut": True}
    if len(text) > MARKDOWN_LIMIT:
        return {"plain": text}
    return {"html": render_markdown(text)}


def _tool(payload: dict[str, Any]) -> dict[str, Any]:
    return {
        "title": payload.get("title") or payload.get("tool_call_id") or "Tool call",
        "word": tool_word(str(payload.get("status") or "")),
        "places": [str(place.get("path", "")) for place in _dicts(payload.get("locations"))],
        "input": _short(_as_text(payload.get("raw_input"))),
        "outputs": [_short(text) for text in _outputs(payload) if text],
        "diffs": [_diff(part) for part in _dicts(payload.get("content")) if part.get("type") == "diff"],
    }


def _outputs(payload: dict[str, Any]) -> list[str]:
    texts = [_part_text(part) for part in _dicts(payload.get("content"))]
    return texts if any(texts) else [_as_text(payload.get("raw_output"))]


def _part_text(part: dict[str, Any]) -> str:
    content = part.get("content")
    inner = content if isinstance(content, dict) else part
    return str(inner["text"]) if isinstance(inner.get("text"), str) else ""


def _diff(part: dict[str, Any]) -> dict[str, str]:
    return {
        "path": str(part.get("path", "")),
        "old": _short(_as_text(part.get("oldText") or part.get("old_text"))),
        "new": _short(_as_text(part.get("newText") or part.get("new_text"))),
    }


def _step(entry: dict[str, Any]) -> dict[str, str]:
    return {"text": str(entry.get("content", "")), "status": str(entry.get("status", "pending"))}


def _as_text(value: Any) -> str:
    if value is None or value in ("", {}, []):
        return ""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def _short(text: str) -> str:
    return text if len(text) <= TOOL_LIMIT else f"{text[:TOOL_LIMIT]}\n… ({len(text) - TOOL_LIMIT} characters more)"


def _dicts(value: Any) -> Iterable[dict[str, Any]]:
    """Whatever an agent sent as a list of objects, without what is none."""
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []
