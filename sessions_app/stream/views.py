"""The conversation as HTML: pages of messages, and each message with its rendered text.

Whoever writes a text decides its length and how expensive it is to read. So a page has a bounded number of characters,
of which each message has a bounded share, and reading them happens in limited processes (``rendering.services``).
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, Subquery, Sum, TextField, When
from django.db.models.functions import Cast, Coalesce, Length, Substr
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.safestring import mark_safe

from executors_app.orm import ObjectField
from sessions_app.confined.client import Failure
from sessions_app.models import PART_LIMIT, Message, MessagePart, TaskSession
from sessions_app.pages.labels import tool_status_label
from sessions_app.redaction.visible_text import make_visible
from sessions_app.rendering.operations.tool_calls import TITLE_LIMIT, only_dicts, shorten, tool_status, tool_title
from sessions_app.rendering.services import Text, render_texts
from sessions_app.stream.rules.nesting import Entry, find_parents, parent_key
from sessions_app.stream.rules.tool_calls import REVIEW_LIMIT

_DIGEST: Final = re.compile("[0-9a-f]{64}")

PAGE_SIZE: Final = 200
"""Messages on one page of the conversation."""
PAGES_HELD: Final = 5
"""Pages of messages that an open page of a browser holds."""
PAGE_CHARS: Final = 1 << 20
"""Characters of their texts and payloads. A page has at least one message, of whatever size."""
SHOWN_PARTS: Final = 2
"""Parts of a message's text that are shown; the rest is on a page of its own."""
GROWING_LIMIT: Final = 64 * 1024
"""Characters that are shown of an incomplete message, from its end: each change sends all of it again."""
PAYLOAD_LIMIT: Final = 1 << 20
"""Characters of JSON. A tool call, plan or question with more is not shown."""
SHOWN_PAYLOAD: Final = 64 * 1024
"""Characters for which a longer payload counts: of most payloads, a page shows a part."""
PAGE_PAYLOADS: Final = 4 << 20
"""Characters of payloads that are read for one page, or measured by the database."""
MESSAGES_AFTER_TARGET: Final = PAGE_SIZE // 4
"""Messages shown after the one that a link names, as context."""
UNKNOWN_AUTHOR: Final = "User"
"""Shown for a prompt whose author is not known, for example because the account was deleted."""
PLAN_LIMIT: Final = 200
"""Steps that are shown of a plan."""
FILES_LIMIT: Final = 50
"""Files that are shown of a prompt."""
WHOLE_PAGE_CHARS: Final = 4 * PART_LIMIT
"""Characters on one page of a whole message."""

FAILURE_NOTES: Final[Mapping[Failure, str]] = {
    Failure.TOO_EXPENSIVE: "Shown as plain text, because formatting it would take too long.",
    Failure.NOT_REACHED: "Shown as plain text for now. Reload the page to format it.",
}
_TOOL_NOTES: Final[Mapping[Failure, str]] = {
    Failure.TOO_EXPENSIVE: "The details are not shown here, because preparing them would take too long.",
    Failure.NOT_REACHED: "The details could not be prepared in time. Reload the page to see them.",
}
_REVIEW_NOTES: Final[Mapping[Failure, str]] = {
    Failure.TOO_EXPENSIVE: "The request is shown as the agent sent it, because preparing it would take too long.",
    Failure.NOT_REACHED: "The request is shown as the agent sent it, for now. Reload the page to see it prepared.",
}
_PAYLOAD_SIZE: Final = Length(Cast("payload", TextField()))


def tool_call_context(payload: Mapping[str, Any], described: Mapping[str, Any] | Failure) -> dict[str, Any]:
    """Return title, status label, places, input, outputs and diffs of a tool call, sanitized for the page.

    ``described`` is the result of rendering the payload. Without one, there are only title, status and ``note``.
    """
    if isinstance(described, Failure):
        return {
            "title": tool_title(payload),
            "label": tool_status_label(tool_status(payload)),
            "note": _TOOL_NOTES[described],
        }
    # Escaped in the limited process, together with the tags around each line.
    diffs = [{**diff, "html": mark_safe(diff["html"])} for diff in described["diffs"]]  # noqa: S308
    return {**described, "label": tool_status_label(described["status"]), "diffs": diffs}


def review_context(payload: Mapping[str, Any], described: Mapping[str, Any] | Failure) -> dict[str, Any]:
    """Return the same for those who may allow the call. Without a result, they see it as the agent sent it."""
    if not isinstance(described, Failure):
        return tool_call_context(payload, described)
    sent = json.dumps(payload, ensure_ascii=False)
    return {
        "label": tool_status_label(tool_status(payload)),
        "input": shorten(sent, REVIEW_LIMIT),
        "is_whole": len(sent) <= REVIEW_LIMIT,
        "note": _REVIEW_NOTES[described],
    }


def last_messages(session: TaskSession, before: int | None = None) -> tuple[list[Message], bool]:
    """Return the newest messages before the number ``before``, oldest first, and whether there are older ones."""
    rows = session.messages.order_by("-seq")
    if before is not None:
        rows = rows.filter(seq__lt=before)
    page = _read_page(rows)
    return page.messages[::-1], page.has_more


def messages_around(session: TaskSession, seq: int) -> tuple[list[Message], bool, bool]:
    """Return a page with the message ``seq``, whether there are older ones, and whether there are newer ones."""
    newer = _read_page(session.messages.filter(seq__gt=seq).order_by("seq"), MESSAGES_AFTER_TARGET, PAGE_CHARS // 4)
    older = _read_page(session.messages.filter(seq__lte=seq).order_by("-seq"), PAGE_SIZE - len(newer.messages))
    return [*older.messages[::-1], *newer.messages], older.has_more, newer.has_more


def most_messages() -> int:
    """Return how many messages an open page of a browser holds."""
    return PAGES_HELD * PAGE_SIZE


def changed_messages(session: TaskSession, after: int) -> tuple[list[Message], bool]:
    """Return the messages with changes after the number ``after``, and whether there are more than one page of them."""
    page = _read_page(session.messages.filter(updated_seq__gt=after).order_by("updated_seq"))
    return page.messages, page.has_more


@dataclass(slots=True)
class _Page:
    messages: list[Message] = field(default_factory=list)
    has_more: bool = False


def _read_page(rows: QuerySet[Message], count: int | None = None, chars: int | None = None) -> _Page:
    """Return the first of the rows, without payloads, up to ``count`` messages and ``chars`` characters."""
    count, chars = count or PAGE_SIZE, chars or PAGE_CHARS
    shown_parts = MessagePart.objects.filter(message=OuterRef("pk"), number__lt=SHOWN_PARTS).order_by()
    text_size = Subquery(shown_parts.values("message").annotate(size=Sum(Length("text"))).values("size"))
    sized = rows.defer("payload").annotate(payload_size=_PAYLOAD_SIZE, text_size=Coalesce(text_size, 0))
    page, shown, read = _Page(), 0, 0
    # In small steps, so that the database measures no rows beyond the page: each may be long.
    for message in sized[: count + 1].iterator(chunk_size=10):
        shown += message.text_size + min(message.payload_size, SHOWN_PAYLOAD)
        read += message.payload_size
        is_full = len(page.messages) == count or shown > chars or read > PAGE_PAYLOADS
        if page.messages and is_full:
            page.has_more = True
            break
        page.messages.append(message)
    return page


@dataclass(slots=True)
class _Content:
    """What is shown of a message, as one database statement has read it."""

    parts: dict[int, str] = field(default_factory=dict)
    is_too_large: bool = False

    @property
    def beginning(self) -> str:
        return "".join(text for number, text in self.parts.items() if number < SHOWN_PARTS)

    @property
    def end(self) -> str:
        return "".join(list(self.parts.values())[-2:])[-GROWING_LIMIT:]

    @property
    def has_more(self) -> bool:
        """Whether there is text behind the beginning."""
        return max(self.parts, default=0) >= SHOWN_PARTS


def render_messages(messages: Sequence[Message], viewer: Any) -> list[dict[str, Any]]:
    """Return each message of a session as ``{id, seq, updated_seq, html}``, all from one database snapshot.

    ``viewer`` is the user who reads them: only their own prompts are said to be from *You*.

    The browser appends what the socket sends after ``updated_seq``. An older or newer text would lose or repeat some.
    """
    return [
        {
            "id": str(message.id),
            "seq": message.seq,
            "updated_seq": message.updated_seq,
            "html": render_to_string("stream/message.html", context),
        }
        for message, context in zip(messages, _contexts(messages, viewer), strict=True)
    ]


def render_page(messages: Sequence[Message], viewer: Any) -> list[str]:
    """Return the messages of a page as HTML: the tool calls of a sub-agent are inside the call that started it.

    A call that is not on the page has no steps there: they stand beside the other messages. ``messages`` are in order.
    """
    contexts = _contexts(messages, viewer)
    parents = find_parents([_entry(context) for context in contexts])
    steps: dict[uuid.UUID, list[str]] = {}
    top: list[str] = []
    # The last first: the steps of a call come after it, and it contains them.
    for context in reversed(contexts):
        key = context["message"].id
        own = steps.get(key, [])[::-1]
        html = render_to_string("stream/message.html", {**context, "steps": [mark_safe(step) for step in own]})  # noqa: S308
        if key in parents:
            steps.setdefault(parents[key], []).append(html)
        else:
            top.append(html)
    return top[::-1]


def _entry(context: Mapping[str, Any]) -> Entry:
    message = context["message"]
    if message.role == "user":
        return Entry(message.id, is_prompt=True)
    return Entry(message.id, key=context.get("call_key", ""), parent_key=context.get("parent_key", ""))


def _contexts(messages: Sequence[Message], viewer: Any) -> list[dict[str, Any]]:
    """Return the variables of the template for each message of a session."""
    if not messages:
        return []
    contents, authors = _reload_contents(messages), _authors(messages, viewer)
    contexts = [_message_context(message, contents[message.id]) for message in messages]
    for context in contexts:
        context["author"] = authors.get(context["message"].key, UNKNOWN_AUTHOR)
    _add_rendered(messages[0].session, contexts)
    return contexts


def _authors(messages: Sequence[Message], viewer: Any) -> dict[str, str]:
    """Return who wrote the prompts among the messages of a session, by key; one query, or none."""
    prompts = [message for message in messages if message.role == "user"]
    if not prompts:
        return {}
    rows = prompts[0].session.prompts.filter(message_id__in={each.key for each in prompts})
    written = rows.values_list("message_id", "by__username", "edited_by")
    return {key: _author(name, editor, viewer) for key, name, editor in written}


def _author(name: str | None, editor: str, viewer: Any) -> str:
    """Return who has queued a prompt, and who has edited it if that is somebody else."""
    own_name = viewer.get_username()
    author = "You" if name == own_name else name or UNKNOWN_AUTHOR
    if editor in ("", name):
        return author
    return f"{author}, edited by {'you' if editor == own_name else editor}"


def _reload_contents(messages: Sequence[Message]) -> dict[uuid.UUID, _Content]:
    """Refresh the messages and return what is shown of them by id: the first parts, and the last two.

    One statement reads both, so that each text belongs to its ``updated_seq`` even while the agent is writing.
    """
    by_id = {message.id: message for message in messages}
    contents = {key: _Content() for key in by_id}
    two_later = MessagePart.objects.filter(message=OuterRef("pk"), number__gte=OuterRef("parts__number") + 2)
    is_shown = Q(parts=None) | Q(parts__number__lt=SHOWN_PARTS) | ~Exists(two_later)
    payload = Case(When(payload_size__lte=PAYLOAD_LIMIT, then=F("payload")), output_field=ObjectField())
    rows = Message.objects.filter(is_shown, id__in=by_id).annotate(payload_size=_PAYLOAD_SIZE)
    columns = ("id", "updated_seq", "complete", "shown_payload", "payload_size", "parts__number", "parts__text")
    found = rows.annotate(shown_payload=payload).order_by("id", "parts__number").values_list(*columns)
    for key, updated_seq, complete, shown_payload, payload_size, number, text in found:
        message, content = by_id[key], contents[key]
        message.updated_seq, message.complete = updated_seq, complete
        message.payload = shown_payload
        content.is_too_large = payload_size > PAYLOAD_LIMIT
        if text is not None:
            content.parts[number] = text
    return contents


def _add_rendered(session: TaskSession, contexts: Sequence[dict[str, Any]]) -> None:
    """Render what the contexts ask for in ``to_render``; the newest messages first, which are read first."""
    asking = [context for context in reversed(contexts) if "to_render" in context]
    rendered = render_texts(session, [context.pop("to_render") for context in asking])
    for context, result in zip(asking, rendered, strict=True):
        if context["kind"] == "tool":
            context.update(tool_call_context(context["message"].payload, result))
            context["images"] = _image_addresses(session, context)
        elif isinstance(result, Failure):
            context["note"] = FAILURE_NOTES[result]
        else:
            context["html"] = mark_safe(result["html"])  # noqa: S308  (cleaned in the limited process)


def _image_addresses(session: TaskSession, context: Mapping[str, Any]) -> list[str]:
    digests, message = context.get("images", []), context["message"]
    return [reverse("message-image", args=(session.task_id, session.id, message.id, digest)) for digest in digests]


def _message_context(message: Message, content: _Content) -> dict[str, Any]:
    shown: dict[str, Any] = {"message": message, "kind": _template_name(message)}
    if message.role == "tool":
        shown["call_key"] = message.key
    if content.is_too_large:
        return {**shown, "kind": "large", "has_more": True}
    if message.role in ("agent", "thought"):
        shown |= _text_context(content, complete=message.complete)
    elif message.role == "tool":
        shown["to_render"] = Text("tool_call", {"payload": message.payload})
        shown["parent_key"] = parent_key(message.payload)
    elif shown["kind"] == "permission":
        shown["permission"] = message.payload["permission"]
    elif shown["kind"] == "question":
        shown |= _question_context(message.payload["question"])
    elif shown["kind"] == "plan":
        shown |= _plan_context(message.payload["plan"])
    else:
        shown["text"] = make_visible(content.beginning)
        shown["has_more"] = content.has_more
        shown["files"] = attached_files(message.session, message.payload.get("attachments"))
    return shown


def attached_files(session: TaskSession, described: Any) -> list[dict[str, Any]]:
    """Return the files of a prompt as ``{name, url, is_image, size}``; the URL is empty if no content is known."""
    return [
        {
            "name": shorten(str(each.get("name") or "file"), TITLE_LIMIT),
            "url": _content_url(session, str(each.get("sha256", ""))),
            "is_image": str(each.get("media_type", "")).startswith("image/"),
            "size": each["size"] if isinstance(each.get("size"), int) else None,
        }
        for each in only_dicts(described)[:FILES_LIMIT]
    ]


def _content_url(session: TaskSession, digest: str) -> str:
    known = _DIGEST.fullmatch(digest)
    if known:
        return reverse("attachment", args=(session.task_id, session.id, digest))
    return ""


def _template_name(message: Message) -> str:
    """Return the name of the template under ``session/messages/`` for a message."""
    if message.role != "status":
        return str(message.role)
    for name in ("plan", "permission", "question"):
        if name in message.payload:
            return name
    if message.payload.get("level") == "error":
        return "error"
    return "note"


def _text_context(content: _Content, *, complete: bool) -> dict[str, Any]:
    """Return the text of a message of the agent; only a complete one is formatted, because it is formatted once."""
    if not complete:
        end = content.end
        is_cut = content.has_more or len(content.beginning) > len(end)
        return {"plain": make_visible(end), "cut": is_cut}
    plain = content.beginning
    if content.has_more:
        return {"plain": make_visible(plain), "has_more": True}
    return {"plain": make_visible(plain), "to_render": Text("markdown", {"text": plain})}


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
    """Return the first steps of a plan, each ``{text, status}``, how many there are, and how many of them are done."""
    found = only_dicts(entries)
    steps = [
        {"text": shorten(str(entry.get("content", "")), TITLE_LIMIT), "status": str(entry.get("status", "pending"))}
        for entry in found[:PLAN_LIMIT]
    ]
    done = sum(entry.get("status") == "completed" for entry in found)
    return {"steps": steps, "count": len(found), "hidden": max(0, len(found) - PLAN_LIMIT), "done": done}


@dataclass(frozen=True, slots=True)
class WholeMessagePage:
    """A page of the plain text of a message, or of the JSON of one without text."""

    text: str
    has_more: bool


def read_whole_message(message_id: uuid.UUID, page: int) -> WholeMessagePage:
    """Return a page of a message, counted from 0."""
    first = page * WHOLE_PAGE_CHARS // PART_LIMIT
    last = first + WHOLE_PAGE_CHARS // PART_LIMIT
    parts = MessagePart.objects.filter(message=message_id, number__gte=first, number__lte=last).order_by("number")
    texts = dict(parts.values_list("number", "text"))
    if texts or MessagePart.objects.filter(message=message_id).exists():
        shown = "".join(text for number, text in texts.items() if number < last)
        return WholeMessagePage(make_visible(shown), last in texts)
    start = page * WHOLE_PAGE_CHARS
    stored = Substr(Cast("payload", TextField()), start + 1, WHOLE_PAGE_CHARS + 1)
    found = Message.objects.filter(id=message_id).values_list(stored, flat=True).first() or ""
    return WholeMessagePage(make_visible(found[:WHOLE_PAGE_CHARS]), len(found) > WHOLE_PAGE_CHARS)
