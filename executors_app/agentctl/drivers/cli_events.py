"""What the lines of command-line agents mean, and the reader that follows the turns of one conversation by them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from executors_app.agentctl.drivers import Host
from executors_app.agentctl.drivers.acp_updates import content_text
from executors_app.agentctl.drivers.json_values import object_of
from executors_app.wire.protocol import JournalKind


@dataclass(frozen=True, slots=True)
class ConversationNamed:
    """The agent has named the conversation that it is in."""

    conversation_id: str


@dataclass(frozen=True, slots=True)
class JournalLine:
    """A line for the journal."""

    kind: JournalKind
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The turn is over; ``stop_reason`` is one of ACP's, or ``BLANK_STOP_REASON``."""

    stop_reason: str = "end_turn"
    last_message_uuid: str | None = None


@dataclass(frozen=True, slots=True)
class TurnErrored:
    """The turn has ended with an error."""

    message: str


CliEvent = ConversationNamed | JournalLine | TurnEnded | TurnErrored
LineParser = Callable[[Mapping[str, Any]], Iterable[CliEvent]]
"""Parses the lines of one process in order; may keep state from line to line."""


class TurnReader:
    """Follows the events of one conversation; call ``begin`` before each turn."""

    def __init__(self, host: Host, requested: str | None):
        """``requested``: the conversation to continue, None for a new one."""
        self.named: str | None = None
        """The conversation's id as the agent reports it; None before it does."""
        self.mismatch: str = ""
        """A sentence, once the agent is in a conversation other than the expected one; later events are ignored."""
        self.over = asyncio.Event()
        """Set when the turn is over: ``ended``, ``failed`` or ``mismatch`` has the outcome."""
        self.ended: TurnEnded | None = None
        self.failed: TurnErrored | None = None
        self._host, self._requested = host, requested

    def begin(self) -> None:
        """Forget the result of the last turn."""
        self.over.clear()
        self.ended = self.failed = None

    async def handle(self, events: Iterable[CliEvent]) -> None:
        """Handle the events of one line."""
        for event in events:
            if self.mismatch:
                return
            match event:
                case ConversationNamed():
                    await self._name(event.conversation_id)
                case JournalLine():
                    self._host.record(event.kind, **event.body)
                case TurnEnded():
                    await self._end(event)
                case TurnErrored():
                    self.failed = event
                    self.over.set()

    async def _name(self, conversation_id: str) -> None:
        if not conversation_id or conversation_id == self.named:
            return
        # The first name must be the requested conversation's; each later name must be the same again.
        expected = self.named or self._requested
        if expected is not None and conversation_id != expected:
            self.mismatch = "The agent continued in a conversation other than the requested one."
            self.over.set()
            return
        await self._host.keep_token(conversation_id)
        self.named = conversation_id

    async def _end(self, ended: TurnEnded) -> None:
        # Saved before the turn counts as over: the next start may resume at exactly this message.
        if self.named and ended.last_message_uuid:
            await self._host.keep_token(self.named, ended.last_message_uuid)
        self.ended = ended
        self.over.set()


def log_event(text: str, data: Any, level: str = "debug") -> JournalLine:
    """Return a ``log`` line whose ``data`` contains what the agent sent."""
    if not isinstance(data, dict):
        data = {"told": data}
    return JournalLine(JournalKind.LOG, {"level": level, "text": text, "data": data})


def tool_call_event(call_id: str, title: str, tool_kind: str, raw_input: Any, parent: str = "") -> JournalLine:
    """Return a tool call in the shape that the ACP driver uses.

    ``parent`` is the id of the tool call whose sub-agent makes this one; empty for the agent's own.
    """
    locations = [{"path": path} for path in _input_paths(raw_input)]
    body: dict[str, Any] = {"tool_call_id": call_id, "title": title, "tool_kind": tool_kind, "status": "in_progress"}
    body["raw_input"] = raw_input
    if locations:
        body["locations"] = locations
    if parent:
        body["parent_tool_call_id"] = parent
    return JournalLine(JournalKind.TOOL_CALL, body)


def tool_result_event(call_id: str, text: str, *, failed: bool, **more: Any) -> JournalLine:
    """Return the result of a tool call; ``more`` are further fields of ``tool.update``."""
    content, status = [], "completed"
    if text:
        content.append({"type": "content", "content": {"type": "text", "text": text}})
    if failed:
        status = "failed"
    return JournalLine(JournalKind.TOOL_UPDATE, {"tool_call_id": call_id, "status": status, "content": content, **more})


def plan_event(steps: Iterable[tuple[str, str]]) -> JournalLine:
    """Return a plan; each step is a text and a state (``pending``, ``in_progress``, ``completed``)."""
    entries = [{"content": text, "priority": "medium", "status": status} for text, status in steps]
    return JournalLine(JournalKind.PLAN, {"entries": entries})


def joined_text(content: Any) -> str:
    """Return the text of content blocks, or of a plain string."""
    if isinstance(content, list):
        return "\n".join(filter(None, map(joined_text, content)))
    if isinstance(content, str):
        return content
    return content_text(content)


def _input_paths(raw_input: Any) -> list[str]:
    fields = object_of(raw_input)
    found = (fields.get(name) for name in ("file_path", "path", "absolute_path", "notebook_path"))
    return [path for path in found if isinstance(path, str)]
