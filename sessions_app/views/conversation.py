"""The conversation as pieces of HTML, one for each message; used by the page and by its live updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.template.loader import render_to_string

from sessions_app.domain.plain_text import visible
from sessions_app.models import Message, TaskSession
from sessions_app.views.markdown import render_markdown
from sessions_app.views.tool_calls import dicts, tool_call

PAGE: Final = 200
"""Messages at a time; the page offers the earlier ones."""
GROWING_LIMIT: Final = 64 * 1024
"""Of a longer text that still grows only so much of its end is shown, for it is sent again at each change."""
MARKDOWN_LIMIT: Final = 128 * 1024
"""A longer text is shown as it is."""
LATER: Final = PAGE // 4
"""Messages behind the one that a link names, so that it is read in its place."""


def last_messages(session: TaskSession, before: int | None = None) -> tuple[list[Message], bool]:
    """The newest messages (older than ``before``), oldest first, and whether there are still older ones."""
    rows = session.messages.order_by("-seq")
    if before is not None:
        rows = rows.filter(seq__lt=before)
    found = list(rows[: PAGE + 1])
    return found[:PAGE][::-1], len(found) > PAGE


def messages_around(session: TaskSession, seq: int) -> tuple[list[Message], bool, bool]:
    """A page with the message ``seq`` in it, whether there are still older ones, and whether there are newer ones."""
    newer = list(session.messages.filter(seq__gt=seq).order_by("seq")[: LATER + 1])
    until = newer[LATER].seq if len(newer) > LATER else None
    return (*last_messages(session, until), until is not None)


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
    shown: dict[str, Any] = {"message": message, "kind": _kind(message)}
    if message.role in ("agent", "thought"):
        shown["tail"] = text[len(text.rstrip()) :]
        shown |= _prose(text, complete=message.complete)
    elif message.role == "tool":
        shown |= tool_call(message.payload)
    elif shown["kind"] == "permission":
        shown["permission"] = message.payload["permission"]
    elif shown["kind"] == "plan":
        shown |= _plan(message.payload["plan"])
    else:
        shown["text"] = visible(text)
    return shown


def _kind(message: Message) -> str:
    """Which of the templates under ``session/messages/`` shows the message."""
    if message.role != "status":
        return str(message.role)
    for name in ("plan", "permission"):
        if name in message.payload:
            return name
    return "error" if message.payload.get("level") == "error" else "note"


def _prose(text: str, *, complete: bool) -> dict[str, Any]:
    if not complete and len(text) > GROWING_LIMIT:
        return {"plain": visible(text[-GROWING_LIMIT:]), "cut": True}
    if len(text) > MARKDOWN_LIMIT:
        return {"plain": visible(text)}
    return {"html": render_markdown(text)}


def _plan(entries: Any) -> dict[str, Any]:
    """The steps of a plan, each ``{text, status}``, and how many of them are done."""
    steps = [
        {"text": visible(str(entry.get("content", ""))), "status": str(entry.get("status", "pending"))}
        for entry in dicts(entries)
    ]
    return {"steps": steps, "done": sum(step["status"] == "completed" for step in steps)}
