"""The conversation: its messages."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field

from sessions_app.kernel.events.base import Event
from sessions_app.kernel.rules.log_event import MESSAGE_ADDED, ROLES, LogEvent
from sessions_app.kernel.rules.rebuild import PLAN, MessageRow, SessionRebuild
from sessions_app.stream.rules.tool_calls import key_of_tool

_PAYLOAD: Final = (
    "for an answered permission `payload.permission` (`permission_id`, `title`, `option_id`, `option`, `by`); for a "
    "question that ended `payload.question` (`permission_id`, `title`, `status`, `reason`, `by`, `answer`, a list of "
    "`field` and `value`, `typed`, `url`); for a prompt with files `payload.attachments`, a list of `name`, "
    "`media_type`, `size`, `sha256`; `payload.sub_agent`, the sub-agent that wrote it or called the tool; "
    "`payload.parent_tool_call_id`, the tool call whose sub-agent made this one. A tool call "
    "whose turn ended without its result has the status `unfinished`"
)


class MessageEvent(Event, recorded_by="ingest"):
    """A change to one message."""

    message_id: str

    @classmethod
    def foreign_ids(cls, line: LogEvent) -> Mapping[str, tuple[str, object]]:
        """Replace the message's id."""
        return {"message_id": ("message", line.payload.get("message_id", f"line {line.seq}"))}


class MessageAdded(MessageEvent, name=MESSAGE_ADDED):
    """A message was added."""

    role: str = Field(description="`user`, `agent`, `thought`, `tool` or `status`")
    payload_: dict[str, Any] = Field(description=_PAYLOAD)
    complete: bool
    text: str

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """Add the message, and give its prompt the text."""
        payload, role, text = line.payload.get("payload", {}), line.payload.get("role"), line.payload.get("text", "")
        if role not in ROLES or not isinstance(payload, dict) or not isinstance(text, str):
            raise ValueError("no message")
        key = uuid.UUID(line.payload["message_id"])
        if key in rows.messages:
            raise ValueError("a message that exists already")
        if role == "user":
            # A user's message has no prompt id. The run that has just started names the prompt that it belongs to.
            name = rows.newest_prompt = rows.expected or str(key)
            rows.expected = ""
            if name in rows.prompts:
                rows.prompts[name].text = text
        elif role == "status" and PLAN in payload:
            name = PLAN
        else:
            name = key_of_tool(payload)
        complete = line.payload.get("complete") is not False
        rows.messages[key] = MessageRow(key, line.seq, line.seq, role, name, dict(payload), complete, line.at, [text])


class MessageUpdated(MessageEvent, name="session.message.updated"):
    """A message has changed; the payload has what changed."""

    complete: bool | None = None
    payload_: dict[str, Any] | None = Field(default=None, description="complete")
    payload_changes: dict[str, Any] | None = Field(
        default=None,
        description="the changed fields alone, in place of `payload`, if what stays the same in it is large",
    )
    append: str | None = Field(default=None, description="text")

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """Change the message. Other producers may ``replace`` its text."""
        changes = line.payload
        message = rows.messages.get(uuid.UUID(changes["message_id"]))
        if message is None:
            raise ValueError("a change to an unknown message")
        if isinstance(changes.get("replace"), str):
            message.pieces = [changes["replace"]]
        if isinstance(changes.get("append"), str):
            message.pieces.append(changes["append"])
        if isinstance(changes.get("payload"), dict):
            message.payload = dict(changes["payload"])
        if isinstance(changes.get("payload_changes"), dict):
            message.payload |= changes["payload_changes"]
        if isinstance(changes.get("complete"), bool):
            message.complete = changes["complete"]
        message.updated_seq = line.seq
