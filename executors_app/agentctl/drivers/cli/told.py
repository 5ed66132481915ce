"""What a line of a command line agent comes to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from executors_app.agentctl.drivers import TurnFailed
from executors_app.agentctl.drivers.acp_updates import text_of
from executors_app.agentctl.protocol import Code, Kind

WANTS_LOGIN: Final = re.compile(
    r"\b(?:log|sign) ?in\b|/login\b|logged out|not authenticated|authentication (?:required|failed)"
    r"|(?:missing|no|set (?:an?|the)) api key|api[ _]key (?:is )?(?:missing|required|not set)",
    re.IGNORECASE,
)
"""Words of agents that nobody has logged in; deliberately not every 401, which a provider may mean."""


@dataclass(frozen=True, slots=True)
class Named:
    """The agent names the conversation that it is in."""

    conversation_id: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line for the journal."""

    kind: Kind
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """The turn is over, in the words of ACP's stop reasons."""

    stop_reason: str = "end_turn"
    last_message_uuid: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The turn is over, with an error."""

    message: str


Told = Named | Line | Ended | Failed
Reader = Callable[[Mapping[str, Any]], Iterable[Told]]
"""Reads the lines of one process, in order; it may keep what it needs to read the next."""


def log(text: str, data: Any, level: str = "debug") -> Line:
    """A ``log`` line with the agent's own words beside it."""
    return Line(Kind.LOG, {"level": level, "text": text, "data": data if isinstance(data, dict) else {"told": data}})


def tool_call(call_id: str, title: str, tool_kind: str, raw_input: Any, *, status: str = "in_progress") -> Line:
    """A tool call, as the ACP driver tells one."""
    locations = [{"path": path} for path in _paths(raw_input)]
    body = {"tool_call_id": call_id, "title": title, "tool_kind": tool_kind, "status": status, "raw_input": raw_input}
    return Line(Kind.TOOL_CALL, {**body, "locations": locations} if locations else body)


def tool_result(call_id: str, text: str, *, failed: bool, **more: Any) -> Line:
    """What came of a tool call; ``more`` are further fields of ``tool.update``."""
    told = [{"type": "content", "content": {"type": "text", "text": text}}] if text else []
    status = "failed" if failed else "completed"
    return Line(Kind.TOOL_UPDATE, {"tool_call_id": call_id, "status": status, "content": told, **more})


def plan(steps: Iterable[tuple[str, str]]) -> Line:
    """A plan of steps and their states (``pending``, ``in_progress``, ``completed``)."""
    entries = [{"content": text, "priority": "medium", "status": status} for text, status in steps]
    return Line(Kind.PLAN, {"entries": entries})


def text_in(content: Any) -> str:
    """The text of content blocks, or of a bare text."""
    if isinstance(content, list):
        return "\n".join(filter(None, map(text_in, content)))
    return content if isinstance(content, str) else text_of(content)


def prompt_text(text: str, attachments: Sequence[Mapping[str, Any]]) -> str:
    """A prompt for an agent that takes text alone; TurnFailed for what is none."""
    for attachment in attachments:
        if attachment.get("type") not in ("text", "resource_link"):
            kind = attachment.get("type")
            raise TurnFailed("attachment_unsupported", f"the agent takes no {kind} in a prompt")
    return "\n\n".join([text, *map(text_of, attachments)])


def says_gone(text: str, patterns: Iterable[str]) -> bool:
    """Whether an agent type's own patterns find in ``text`` that the conversation is gone."""
    return any(re.search(pattern, text, re.IGNORECASE) for pattern in patterns)


def failure_code(text: str) -> str:
    """The code of a turn that ended with an error of the agent."""
    return Code.AUTH_REQUIRED if WANTS_LOGIN.search(text) else "agent_error"


def _paths(raw_input: Any) -> list[str]:
    told = raw_input if isinstance(raw_input, dict) else {}
    found = (told.get(name) for name in ("file_path", "path", "absolute_path", "notebook_path"))
    return [path for path in found if isinstance(path, str)]
