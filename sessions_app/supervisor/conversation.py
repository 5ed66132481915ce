"""The conversation of one session as ingest changes it: text that grows, tool calls, plans.

Consecutive chunks of one message within a batch become one event; the text is the same to the byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sessions_app.models import PART_LIMIT, Draft, Message, MessagePart, NewEvent

TEXT_ROLES = ("agent", "thought")
UNFINISHED_TOOL_STATES = ("pending", "in_progress", "")
PLAN = "plan"


@dataclass
class _Change:
    """What this batch does to one message, told by one event."""

    message: Message
    event: NewEvent
    is_new: bool = False
    pieces: list[str] = field(default_factory=list)


class Conversation:
    """The unfinished messages of a session, and what the present batch does to them."""

    def __init__(self, draft: Draft):
        self.draft = draft
        unfinished = list(draft.session.messages.filter(complete=False).order_by("seq"))
        texts = [message for message in unfinished if message.role in TEXT_ROLES]
        self._growing: Message | None = texts[-1] if texts else None
        self._tools = {message.key: message for message in unfinished if message.role == "tool"}
        """Unfinished ones, and all that this batch touches: those in the database may be behind them."""
        self._plan = next((message for message in unfinished if message.key == PLAN and message.role == "status"), None)
        self._changes: list[_Change] = []
        self._joining: _Change | None = None

    def add(self, role: str, text: str, *, key: str = "", complete: bool = True, **payload: Any) -> Message:
        """A new message at the end."""
        message = Message(
            session=self.draft.session, role=role, key=key, payload=payload, complete=complete, created_at=self.draft.at
        )
        event = self.draft.say(
            "session.message.added", message_id=str(message.id), role=role, payload=payload, complete=complete
        )
        self._changes.append(_Change(message, event, is_new=True, pieces=[text]))
        return message

    def text(self, role: str, chunk: str) -> None:
        """A chunk of what the agent says or thinks; joins the message of that role which is growing."""
        if not chunk:
            return
        if self._growing is not None and self._growing.role != role:
            self.finish_text()
        if self._growing is None:
            self._growing = self.add(role, chunk, complete=False)
            self._joining = self._changes[-1]
        elif self._joining is not None:
            self._joining.pieces.append(chunk)
        else:
            event = self.draft.say("session.message.updated", message_id=str(self._growing.id))
            self._joining = _Change(self._growing, event, pieces=[chunk])
            self._changes.append(self._joining)

    def pause(self) -> None:
        """Something else is being said: further chunks get an event of their own, behind it."""
        self._joining = None

    def finish_text(self) -> None:
        """What was growing has come to its end."""
        if self._growing is not None:
            self._update(self._growing, complete=True)
        self._growing = None

    def tool(self, key: str, values: Mapping[str, Any]) -> None:
        """A tool call, or a change to one."""
        self.finish_text()
        known = {name: value for name, value in values.items() if value is not None}
        message = self._tools.get(key) or self._earlier(key)
        payload = {**(message.payload if message else {}), **known}
        complete = str(payload.get("status") or "") not in UNFINISHED_TOOL_STATES
        if message is None:
            message = self.add("tool", "", key=key, complete=complete, **payload)
        else:
            self._update(message, complete=complete, payload=payload)
        self._tools[key] = message

    def _earlier(self, key: str) -> Message | None:
        """A finished tool call that is changed once more."""
        return self.draft.session.messages.filter(key=key, role="tool").order_by("-seq").first()

    def plan(self, entries: Any) -> None:
        """The agent's plan: one message a turn, replaced as a whole."""
        self.finish_text()
        if self._plan is None:
            self._plan = self.add("status", "", key=PLAN, complete=False, plan=entries)
        else:
            self._update(self._plan, complete=False, payload={"plan": entries})

    def unfinished_tools(self) -> list[str]:
        """Titles of the tool calls that have no result."""
        return [str(m.payload.get("title") or m.key) for m in self._tools.values() if not m.complete]

    def finish(self, tool_status: str = "") -> None:
        """The turn is over; unfinished tool calls become ``tool_status`` (never "completed", design 7)."""
        self.finish_text()
        for message in [tool for tool in self._tools.values() if not tool.complete]:
            payload = {**message.payload, "status": tool_status} if tool_status else None
            self._update(message, complete=True, payload=payload)
        if self._plan is not None:
            self._update(self._plan, complete=True)
            self._plan = None

    def _update(self, message: Message, *, complete: bool, payload: dict[str, Any] | None = None) -> None:
        self.pause()
        message.complete = complete
        said: dict[str, Any] = {"message_id": str(message.id), "complete": complete}
        if payload is not None:
            message.payload = said["payload"] = payload
        self._changes.append(_Change(message, self.draft.say("session.message.updated", **said)))

    def seal(self) -> None:
        """Put the joined text into the events, and have the rows written with them. Call once, at the end."""
        for change in self._changes:
            name = "text" if change.is_new else "append"
            if change.is_new or change.pieces:
                change.event.payload = {**change.event.payload, name: "".join(change.pieces)}
        self.draft.then.append(self._write)

    def _write(self) -> None:
        new = [change for change in self._changes if change.is_new]
        for change in new:
            change.message.seq = change.event.seq
        for change in self._changes:
            change.message.updated_seq = change.event.seq
        Message.objects.bulk_create([change.message for change in new])
        old = {change.message.id: change.message for change in self._changes} if self._changes else {}
        for message in old.values():
            if message.id not in {change.message.id for change in new}:
                message.save(update_fields=["payload", "complete", "updated_seq"])
        for change in self._changes:
            _append_text(change.message, "".join(change.pieces), is_new=change.is_new)


def _append_text(message: Message, text: str, *, is_new: bool) -> None:
    """Write text behind what the message has, in parts of at most ``PART_LIMIT``."""
    if not text:
        return
    last = None if is_new else MessagePart.objects.filter(message=message).order_by("-number").first()
    number = last.number if last else -1
    if last is not None and len(last.text) < PART_LIMIT:
        head, text = text[: PART_LIMIT - len(last.text)], text[PART_LIMIT - len(last.text) :]
        last.text += head
        last.save(update_fields=["text"])
    pieces = [text[start : start + PART_LIMIT] for start in range(0, len(text), PART_LIMIT)]
    MessagePart.objects.bulk_create(
        MessagePart(message=message, number=number + index, text=piece) for index, piece in enumerate(pieces, start=1)
    )
