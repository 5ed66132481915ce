"""The messages of the conversation: a projection of the log, with text in parts of bounded size."""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any

from django.db import models
from django.db.models import Exists, OuterRef, QuerySet
from django.db.models.functions import Cast, Length

from executors_app.orm import ID_PLACEHOLDER, NUMBER_PLACEHOLDER, KeyedQuery, ObjectField, PreparedQuery
from sessions_app.accounts.team_scope import TeamModel
from sessions_app.kernel.bulk import insert_rows, update_rows
from sessions_app.kernel.models.session import TaskSession
from sessions_app.turns.models import Turn

PART_LIMIT = 64 * 1024
"""Maximum characters of one part: appending to a text that grows in one row would be quadratic."""


class Message(TeamModel):
    """One message of the conversation, in the order of ``seq`` (the event that added it)."""

    team_path = "session__task__team"
    ROLES = ("user", "agent", "thought", "tool", "status")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="messages")
    seq = models.BigIntegerField()
    updated_seq = models.BigIntegerField()
    role = models.CharField(max_length=10, choices=[(r, r) for r in ROLES])
    key = models.CharField(max_length=200, blank=True, default="")
    """Name by which later journal lines refer to the message: a prompt's message_id, or `key_of_tool` of a tool call.

    Agents count their tool calls per turn, so several tool calls of a session may have one key, but not in one turn.
    """
    payload = ObjectField(default=dict)
    complete = models.BooleanField(default=True)
    created_at = models.DateTimeField()

    class Meta(TeamModel.Meta):
        db_table = "session_messages"
        ordering = ("seq",)
        constraints = (models.UniqueConstraint(fields=("session", "seq"), name="one_message_per_seq"),)
        indexes = (
            models.Index(fields=("session", "key", "seq"), name="message_by_key_and_seq"),
            models.Index(fields=("session", "updated_seq"), name="message_by_update"),
            models.Index(fields=("session", "role"), condition=models.Q(complete=False), name="message_unfinished"),
        )

    def __str__(self) -> str:
        return f"{self.role} message {self.seq}"


class MessagePart(models.Model):
    """A piece of a message's text, at most ``PART_LIMIT`` characters."""

    message = models.ForeignKey(Message, models.CASCADE, related_name="parts")
    number = models.PositiveIntegerField()
    text = models.TextField()

    class Meta:
        db_table = "session_message_parts"
        ordering = ("number",)
        constraints = (models.UniqueConstraint(fields=("message", "number"), name="one_part_per_number"),)

    def __str__(self) -> str:
        return f"part {self.number}"


def texts_of(messages: Iterable[Message]) -> dict[uuid.UUID, str]:
    """Return the whole text of each message, by id; one query."""
    texts: dict[uuid.UUID, list[str]] = {message.id: [] for message in messages}
    rows = MessagePart.objects.filter(message_id__in=texts).order_by("message_id", "number")
    for message_id, text in rows.values_list("message_id", "text"):
        texts[message_id].append(text)
    return {key: "".join(parts) for key, parts in texts.items()}


def text_pieces(messages: Collection[Message], begins: Mapping[uuid.UUID, int], limit: int) -> dict[uuid.UUID, str]:
    """Return at most ``limit`` characters of the text of each message, by id; two queries.

    ``begins`` has the number of characters to skip, for the messages of which some are skipped.
    """
    parts = MessagePart.objects.filter(message__in=messages).order_by("message_id", "number")
    ends: dict[uuid.UUID, int] = {}
    skipped: dict[int, int] = {}
    """By the id of a part that is read: how many characters of its message are before it."""
    for part_id, message_id, length in parts.annotate(length=Length("text")).values_list("id", "message_id", "length"):
        start = ends.get(message_id, 0)
        ends[message_id] = start + length
        begin = begins.get(message_id, 0)
        if ends[message_id] > begin and start < begin + limit:
            skipped[part_id] = start
    texts: dict[uuid.UUID, list[str]] = {message.id: [] for message in messages}
    for part_id, message_id, text in parts.filter(id__in=skipped).values_list("id", "message_id", "text"):
        begin = begins.get(message_id, 0) - skipped[part_id]
        texts[message_id].append(text[max(begin, 0) : begin + limit])
    return {message_id: "".join(pieces) for message_id, pieces in texts.items()}


_PARTS_AT_ONCE = 16


def leading_texts(messages: QuerySet[Message], limit: int, *, newest_first: bool = False) -> list[str]:
    """Return the texts of messages in order, up to ``limit`` characters in all; two queries."""
    order = "-message__seq" if newest_first else "message__seq"
    ids = list(messages.values_list("id", flat=True))
    parts = MessagePart.objects.filter(message_id__in=ids).order_by(order, "number").values_list("message_id", "text")
    texts: dict[uuid.UUID, str] = {}
    for message_id, text in parts.iterator(chunk_size=_PARTS_AT_ONCE):
        texts[message_id] = texts.get(message_id, "") + text[:limit]
        limit -= len(text)
        if limit <= 0:
            break
    return list(texts.values())


def has_called_tools_since(turn: Turn) -> bool:
    """Whether a tool may have run since a turn began; it may if that is not known.

    A tool call of an earlier turn that changed since then counts, and so does an answered permission, because some
    agents report nothing else of the call.
    """
    if turn.first_seq is None:
        return True
    messages = Message.objects.filter(session_id=turn.session_id)
    if messages.filter(role="tool", updated_seq__gt=turn.first_seq).exists():
        return True
    return messages.filter(role="status", seq__gt=turn.first_seq, payload__has_key="permission").exists()


def messages_of(turn: Turn) -> QuerySet[Message]:
    """Select the messages since a turn began and before the next one, ordered by ``seq``; asks for that one at once.

    None if it is not known when the turn began. The end of an answer may arrive after the end of its turn.
    """
    if turn.first_seq is None:
        return Message.objects.none()
    messages = Message.objects.filter(session_id=turn.session_id, seq__gt=turn.first_seq)
    turns = Turn.objects.filter(session_id=turn.session_id, has_process=True, first_seq__gt=turn.first_seq)
    following = turns.order_by("first_seq").values_list("first_seq", flat=True).first()
    return (messages if following is None else messages.filter(seq__lte=following)).order_by("seq")


def answers_of(turn: Turn) -> QuerySet[Message]:
    """Select the agent's messages of a turn, ordered by ``seq``; see ``messages_of``."""
    return messages_of(turn).filter(role="agent")


@dataclass(slots=True)
class MessageDraft:
    """A row of ``Message`` for ingest, which handles thousands at once: too many for model instances."""

    session_id: uuid.UUID
    role: str
    created_at: datetime
    key: str = ""
    payload: dict[str, Any] = field(default_factory=dict)
    complete: bool = True
    seq: int = 0
    updated_seq: int = 0
    id: uuid.UUID = field(default_factory=uuid.uuid4)


def random_ids() -> Iterator[uuid.UUID]:
    """Yield random ids (UUID version 4); asking the kernel for each one takes most of the time that a message does."""
    while True:
        noise = os.urandom(16 * 64)
        for start in range(0, len(noise), 16):
            yield uuid.UUID(bytes=noise[start : start + 16], version=4)


_COLUMNS = tuple(column.name for column in fields(MessageDraft))
_CHANGING = ("payload", "complete", "updated_seq")


TEXT_ROLES = ("agent", "thought")
_UNFINISHED = KeyedQuery(lambda keys: _rows(session_id__in=keys, complete=False, role__in=(*TEXT_ROLES, "status")))
_OPEN_TOOLS = PreparedQuery(lambda key: _rows(session_id=key, complete=False, role="tool"))
_LAST_PARTS = KeyedQuery(
    lambda keys: (
        MessagePart.objects.filter(
            ~Exists(MessagePart.objects.filter(message_id=OuterRef("message_id"), number__gt=OuterRef("number"))),
            message_id__in=keys,
        )
        .order_by()
        .annotate(length=Length("text"))
        .values_list("message_id", "id", "number", "length")
    )
)


def _rows(**those: Any) -> QuerySet[Message, Any]:
    return Message.objects.filter(**those).order_by("seq").values_list(*_COLUMNS)


def unfinished_messages(sessions: Collection[uuid.UUID]) -> dict[uuid.UUID, list[MessageDraft]]:
    """Return each session's texts, thoughts and statuses that may still change, ordered by ``seq``."""
    found: dict[uuid.UUID, list[MessageDraft]] = {session_id: [] for session_id in sessions}
    for row in _UNFINISHED.values(sessions):
        message = MessageDraft(*row)
        found[message.session_id].append(message)
    return found


def open_tools(session_id: uuid.UUID) -> list[MessageDraft]:
    """Return the tool calls without a result, ordered by ``seq``."""
    return [MessageDraft(*row) for row in _OPEN_TOOLS.values(session_id)]


_OPEN_TOOL_SIZES = PreparedQuery(
    lambda key: (
        Message.objects.filter(session_id=key, complete=False, role="tool")
        .order_by("seq")
        .annotate(size=Length(Cast("payload", models.TextField())))
        .values_list("id", "size")
    )
)


def open_tool_sizes(session_id: uuid.UUID) -> dict[uuid.UUID, int]:
    """Return the characters of the payload of each tool call without a result, ordered by ``seq``."""
    return dict(_OPEN_TOOL_SIZES.values(session_id))


def tools_by_id(message_ids: Collection[uuid.UUID]) -> list[MessageDraft]:
    """Return these tool calls."""
    if message_ids:
        return [MessageDraft(*row) for row in _rows(id__in=message_ids)]
    return []


def tools_of_turn(session_id: uuid.UUID, turn: Turn | None, keys: Collection[str]) -> list[MessageDraft]:
    """Return the tool calls with these keys since the turn began, finished or not, ordered by ``seq``.

    ``turn`` is None for output of a session that had no turn yet. None are known of a turn that began at an unknown
    place: a key may name a call of an earlier turn.
    """
    since = 0 if turn is None else turn.first_seq
    if not keys or since is None:
        return []
    return [MessageDraft(*row) for row in _tools_by_keys(len(keys)).values(session_id, since, *keys)]


@lru_cache(maxsize=128)
def _tools_by_keys(count: int) -> PreparedQuery[Message]:
    """Prepare the query for ``count`` keys; batches name few, so few such queries exist."""
    placeholders = [f"key {number}" for number in range(count)]
    return PreparedQuery(_tools_since, ID_PLACEHOLDER, NUMBER_PLACEHOLDER, *placeholders)


def _tools_since(session: Any, seq: int, *keys: str) -> QuerySet[Message, Any]:
    return _rows(session_id=session, role="tool", key__in=keys, seq__gt=seq)


def newest_tool(session_id: uuid.UUID, key: str) -> MessageDraft | None:
    """Return the newest tool call with this key, of any turn; None if there is none."""
    row = _NEWEST_TOOL.values(session_id, key)
    if row:
        return MessageDraft(*row[0])
    return None


_NEWEST_TOOL = PreparedQuery(
    lambda session, key: _rows(session_id=session, role="tool", key=key).order_by("-seq")[:1],
    ID_PLACEHOLDER,
    "key",
)


def newest_answer(session_id: uuid.UUID, since: int) -> MessageDraft | None:
    """Return the last message of the agent after the event ``since``; None if there is none."""
    row = _rows(session_id=session_id, role="agent", seq__gt=since).order_by("-seq").first()
    if row:
        return MessageDraft(*row)
    return None


def first_parts(message_id: uuid.UUID, limit: int) -> list[str]:
    """Return the parts of a message's text from its beginning, only as many as show whether it exceeds ``limit``."""
    parts = MessagePart.objects.filter(message_id=message_id).order_by("number").values_list("text", flat=True)
    return list(parts[: limit // PART_LIMIT + 1])


def last_text(message_id: uuid.UUID, limit: int) -> str:
    """Return the end of a message's text, at least ``limit`` characters if it has so many; one query."""
    parts = MessagePart.objects.filter(message_id=message_id).order_by("-number").values_list("text", flat=True)
    pieces: list[str] = []
    for part in parts[: limit // PART_LIMIT + 2]:
        pieces.insert(0, part)
    return "".join(pieces)


def write_messages(new: Sequence[MessageDraft], changed: Sequence[MessageDraft]) -> None:
    """Insert new messages and update the variable fields of others; one statement each."""
    insert_rows(Message, _COLUMNS, list(map(attrgetter(*_COLUMNS), new)))
    update_rows(Message, _CHANGING, list(map(attrgetter(*_CHANGING, "id"), changed)))


def append_texts(texts: Mapping[uuid.UUID, str], known: Collection[uuid.UUID]) -> None:
    """Append text to messages, in parts of at most ``PART_LIMIT``; only those in ``known`` may have text already."""
    last_parts = {key: part for key, *part in _LAST_PARTS.values([key for key in texts if key in known])}
    grown, new = [], []
    for message_id, text in texts.items():
        part_id, number, length = last_parts.get(message_id, NO_PART)
        room = PART_LIMIT - length
        if room > 0:
            grown.append((text[:room], part_id))
        pieces = range(max(room, 0), len(text), PART_LIMIT)
        new += [(message_id, number + at, text[start : start + PART_LIMIT]) for at, start in enumerate(pieces, start=1)]
    update_rows(MessagePart, ("text",), grown, grow="text")
    insert_rows(MessagePart, ("message_id", "number", "text"), new)


NO_PART = (0, -1, PART_LIMIT)
"""Id, number and length of the last part of a message without text."""
