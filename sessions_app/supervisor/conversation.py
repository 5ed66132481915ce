"""The conversation of one session as ingest changes it: text that grows, tool calls, plans.

Consecutive chunks of one message within a batch become one event; the text is the same to the byte.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sessions_app.models import (
    TEXT_ROLES,
    MessageDraft,
    NewEvent,
    SessionTransaction,
    append_texts,
    open_tools,
    texts_of,
    tools_named,
    unfinished_messages,
    write_messages,
)

UNFINISHED_TOOL_STATES = ("pending", "in_progress", "")
PLAN_KEY = "plan"


@dataclass
class _Change:
    """What this batch does to one message, told by one event."""

    message: MessageDraft
    event: NewEvent
    is_new: bool = False
    pieces: list[str] = field(default_factory=list)


class ConversationUpdate:
    """The unfinished messages of a session, and what the present batch does to them."""

    def __init__(self, transaction: SessionTransaction, tool_keys: Collection[str] = ()):
        """``tool_keys`` name the tool calls that the batch speaks of."""
        self.transaction = transaction
        unfinished = unfinished_messages(transaction.session.id)
        texts = [message for message in unfinished if message.role in TEXT_ROLES]
        self._growing: MessageDraft | None = texts[-1] if texts else None
        self._plan = next(
            (message for message in unfinished if message.key == PLAN_KEY and message.role == "status"), None
        )
        self._tools = {tool.key: tool for tool in tools_named(transaction.session.id, tool_keys)}
        """What this batch speaks of, finished or not: those in the database may be behind them."""
        self._changes: list[_Change] = []
        self._last_text: _Change | None = None
        """What this batch has last put into the message that grows."""
        self._joins_last_text = False
        """The next chunk joins it: nothing else was said meanwhile."""

    def add_message(
        self, role: str, text: str, *, key: str = "", complete: bool = True, **payload: Any
    ) -> MessageDraft:
        """A new message at the end."""
        message = MessageDraft(self.transaction.session.id, role, self.transaction.at, key, payload, complete)
        event = self.transaction.record_event(
            "session.message.added", message_id=str(message.id), role=role, payload=payload, complete=complete
        )
        self._changes.append(_Change(message, event, is_new=True, pieces=[text]))
        return message

    def append_text(self, role: str, chunk: str) -> None:
        """A chunk of what the agent says or thinks; joins the message of that role which is growing."""
        if not chunk:
            return
        if self._growing is not None and self._growing.role != role:
            self.finish_text()
        if self._last_text is not None and self._joins_last_text:
            self._last_text.pieces.append(chunk)
            return
        if self._growing is None:
            self._growing = self.add_message(role, chunk, complete=False)
        else:
            event = self.transaction.record_event("session.message.updated", message_id=str(self._growing.id))
            self._changes.append(_Change(self._growing, event, pieces=[chunk]))
        self._last_text, self._joins_last_text = self._changes[-1], True

    def end_chunk(self) -> None:
        """Something else is being said: further chunks get an event of their own, behind it."""
        self._joins_last_text = False

    def finish_text(self) -> None:
        """What was growing has come to its end; its last words say so where they are of this batch."""
        if self._last_text is not None:
            self._last_text.message.complete = self._last_text.event.payload["complete"] = True
        elif self._growing is not None:
            self._update(self._growing, complete=True)
        self._growing = self._last_text = None

    def update_tool(self, key: str, values: Mapping[str, Any]) -> None:
        """A tool call, or a change to one."""
        self.finish_text()
        known = {name: value for name, value in values.items() if value is not None}
        message = self._tools.get(key)
        payload = {**(message.payload if message else {}), **known}
        complete = str(payload.get("status") or "") not in UNFINISHED_TOOL_STATES
        if message is None:
            message = self.add_message("tool", "", key=key, complete=complete, **payload)
        else:
            self._update(message, complete=complete, payload=payload)
        self._tools[key] = message

    def known_tool_fields(self, key: str) -> Mapping[str, Any]:
        """What the agent has told of a tool call that this batch speaks of."""
        message = self._tools.get(key)
        return message.payload if message else {}

    def set_plan(self, entries: Any) -> None:
        """The agent's plan: one message a turn, replaced as a whole."""
        self.finish_text()
        if self._plan is None:
            self._plan = self.add_message("status", "", key=PLAN_KEY, complete=False, plan=entries)
        else:
            self._update(self._plan, complete=False, payload={"plan": entries})

    def unfinished_tools(self) -> list[str]:
        """Titles of the tool calls that have no result."""
        return [str(tool.payload.get("title") or tool.key) for tool in self._open_tools()]

    def _open_tools(self) -> list[MessageDraft]:
        """Every tool call of the session without a result; not looked for before somebody asks: there may be many."""
        tools = {**self._stored_open_tools, **self._tools}
        return [tool for tool in tools.values() if not tool.complete]

    @cached_property
    def _stored_open_tools(self) -> dict[str, MessageDraft]:
        return {tool.key: tool for tool in open_tools(self.transaction.session.id)}

    def has_called_tools_since(self, key: str) -> bool:
        """Whether the agent has called a tool behind the user's message ``key``."""
        new = [change.message for change in self._changes if change.is_new]
        begin = next((at for at, one in enumerate(new) if one.role == "user" and one.key == key), None)
        if begin is not None or any(one.role == "tool" for one in new):
            return any(one.role == "tool" for one in new[begin or 0 :])
        messages = self.transaction.session.messages
        told = messages.filter(role="user", key=key).order_by("seq").values_list("seq", flat=True).first()
        return told is not None and messages.filter(role="tool", seq__gt=told).exists()

    def agent_text_since(self, key: str) -> str:
        """All that the agent has said behind the user's message ``key``."""
        begin = next(
            (at for at, one in enumerate(self._changes) if one.message.role == "user" and one.message.key == key), None
        )
        now = [piece for one in self._changes[begin or 0 :] if one.message.role == "agent" for piece in one.pieces]
        if begin is not None:
            return "".join(now)
        messages = self.transaction.session.messages
        told = messages.filter(role="user", key=key).order_by("seq").values_list("seq", flat=True).first() or 0
        before = texts_of(messages.filter(role="agent", seq__gt=told).order_by("seq"))
        return "".join([*before.values(), *now])

    def finish(self, tool_status: str = "") -> None:
        """The turn is over; unfinished tool calls become ``tool_status`` (never "completed", design 7)."""
        self.finish_text()
        for message in self._open_tools():
            payload = {**message.payload, "status": tool_status} if tool_status else None
            self._tools[message.key] = message
            self._update(message, complete=True, payload=payload)
        if self._plan is not None:
            self._update(self._plan, complete=True)
            self._plan = None

    def _update(self, message: MessageDraft, *, complete: bool, payload: dict[str, Any] | None = None) -> None:
        self.end_chunk()
        message.complete = complete
        said: dict[str, Any] = {"message_id": str(message.id), "complete": complete}
        if payload is not None:
            message.payload = said["payload"] = payload
        self._changes.append(_Change(message, self.transaction.record_event("session.message.updated", **said)))

    def schedule_write(self) -> None:
        """Put the joined text into the events, and have the rows written with them. Call once, at the end."""
        for change in self._changes:
            if change.is_new or change.pieces:
                change.event.payload["text" if change.is_new else "append"] = "".join(change.pieces)
        self.transaction.after_events.append(self._write)

    def _write(self) -> None:
        """One statement for each kind of row."""
        new, old = [], {}
        texts: defaultdict[uuid.UUID, list[str]] = defaultdict(list)
        for change in self._changes:
            if change.is_new:
                change.message.seq = change.event.seq
                new.append(change.message)
            elif change.message.seq < self._changes[0].event.seq:
                old[change.message.id] = change.message
            change.message.updated_seq = change.event.seq
            texts[change.message.id] += change.pieces
        write_messages(new, list(old.values()))
        joined = {message_id: "".join(pieces) for message_id, pieces in texts.items()}
        append_texts({message_id: text for message_id, text in joined.items() if text}, known=old)
