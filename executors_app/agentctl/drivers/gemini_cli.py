"""The driver for Gemini CLI without ACP: a process per turn, its prompt on stdin, ``stream-json`` on stdout.

``init`` names the conversation, ``result`` ends the turn. The agent cannot ask for permission in between: it does not
offer tools that need one to the model, unless all of them are approved.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from executors_app.agentctl.drivers import Driver, Host, StartRequest
from executors_app.agentctl.drivers.cli_events import (
    CliEvent,
    ConversationNamed,
    JournalLine,
    TurnEnded,
    TurnErrored,
    log_event,
    tool_call_event,
    tool_result_event,
)
from executors_app.agentctl.drivers.json_values import object_of
from executors_app.agentctl.drivers.per_turn import Dialect, PerTurnDriver
from executors_app.agentctl.drivers.stream_json import tool_title
from executors_app.wire.protocol import JournalKind

_TOOL_KINDS: Final = {
    "run_shell_command": "execute",
    "read_file": "read",
    "read_many_files": "read",
    "list_directory": "read",
    "write_file": "edit",
    "replace": "edit",
    "glob": "search",
    "grep_search": "search",
    "search_file_content": "search",
    "google_web_search": "search",
    "web_fetch": "fetch",
}


def _turn(request: StartRequest, conversation_id: str | None, images: Sequence[str]) -> list[str]:
    """Return ``gemini --output-format=stream-json``, with ``--resume=ID`` for an existing conversation."""
    command = [*request.argv, "--output-format=stream-json"]
    if request.model:
        command.append(f"--model={request.model}")
    if request.permission_mode == "auto_approve":
        command.append("--approval-mode=yolo")
    if conversation_id is not None:
        return [*command, f"--resume={conversation_id}"]
    return command


class GeminiEventReader:
    """Parses one turn. Gemini numbers tool calls in each process, so each id gets a prefix that is unique per turn."""

    def __init__(self) -> None:
        self._turn = uuid.uuid4().hex[:12]

    def __call__(self, message: Mapping[str, Any]) -> Iterator[CliEvent]:
        """Yield the events of one line."""
        match message.get("type"):
            case "init":
                yield ConversationNamed(str(message.get("session_id") or ""))
            case "message" if message.get("role") == "assistant":
                yield JournalLine(JournalKind.MESSAGE_AGENT, {"text": str(message.get("content") or "")})
            case "message":
                pass  # the agent repeats the prompt
            case "tool_use":
                name, arguments = str(message.get("tool_name")), message.get("parameters")
                kind = _TOOL_KINDS.get(name, "other")
                yield tool_call_event(self._call_id(message), tool_title(name, arguments), kind, arguments)
            case "tool_result":
                failed = message.get("status") != "success"
                yield tool_result_event(self._call_id(message), _tool_output(message), failed=failed)
            case "error":
                yield log_event(str(message.get("message")), {}, level="warning")
            case "result":
                yield from self._result(message)
            case kind:
                yield log_event(f"the agent sent {kind}", dict(message))

    def _call_id(self, message: Mapping[str, Any]) -> str:
        return f"{self._turn}-{message['tool_id']}"

    def _result(self, message: Mapping[str, Any]) -> Iterator[CliEvent]:
        if isinstance(message.get("stats"), dict):
            yield JournalLine(JournalKind.USAGE, {"usage": message["stats"]})
        error = message.get("error")
        if message.get("status") == "success":
            yield TurnEnded()
        elif isinstance(error, dict):
            yield TurnErrored(str(error.get("message")))
        else:
            yield TurnErrored(str(error or "the turn failed"))


def _tool_output(message: Mapping[str, Any]) -> str:
    error = message.get("error")
    told_error = object_of(error).get("message")
    return str(told_error or message.get("output") or "")


DIALECT: Final = Dialect("gemini-cli", "gemini stream-json", _turn, GeminiEventReader)


def create(host: Host, marker: Mapping[str, str]) -> Driver:
    """Return a driver that starts the agent for each turn; ``marker`` is added to its environment."""
    return PerTurnDriver(host, marker, DIALECT)
