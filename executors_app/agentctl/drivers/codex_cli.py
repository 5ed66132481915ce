"""The driver for ``codex exec``: a process per turn, its prompt on stdin, ``--json`` lines on stdout.

``thread.started`` names the conversation, ``item.*`` report the work, ``turn.completed`` and ``turn.failed`` end the
turn. The agent cannot ask for permission in between: its own sandbox decides what it may do.
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
    joined_text,
    log_event,
    plan_event,
    tool_call_event,
    tool_result_event,
)
from executors_app.agentctl.drivers.json_values import object_of
from executors_app.agentctl.drivers.per_turn import Dialect, PerTurnDriver
from executors_app.wire.protocol import JournalKind

_SKIP_CHECK: Final = ("--skip-git-repo-check", "--json")
_UNFINISHED: Final = ("in_progress", "pending")
Item = Mapping[str, Any]


def _turn(request: StartRequest, conversation_id: str | None, images: Sequence[str]) -> list[str]:
    """Return ``codex exec -`` or ``codex exec resume ID -``; ``-`` stands for stdin."""
    command = [*request.argv, "exec"]
    if conversation_id is not None:
        command.append("resume")
    command += _SKIP_CHECK
    if request.model:
        command.append(f"--model={request.model}")
    if request.permission_mode == "auto_approve":
        command.append("--dangerously-bypass-approvals-and-sandbox")
    command += [f"--image={path}" for path in images]
    command.append("--")
    if conversation_id is not None:
        command.append(conversation_id)
    return [*command, "-"]


class CodexEventReader:
    """Parses one turn. Codex numbers items from 0 in each process, so each id gets a prefix that is unique per turn."""

    def __init__(self) -> None:
        self._turn = uuid.uuid4().hex[:12]
        self._begun: set[str] = set()
        self._last_was_text = False

    def __call__(self, message: Mapping[str, Any]) -> Iterator[CliEvent]:
        """Yield the events of one line."""
        match message.get("type"):
            case "thread.started":
                yield ConversationNamed(str(message.get("thread_id") or ""))
            case "item.started" | "item.updated" | "item.completed":
                yield from self._item(message["item"], done=message["type"] == "item.completed")
            case "turn.completed":
                if isinstance(message.get("usage"), dict):
                    yield JournalLine(JournalKind.USAGE, {"usage": message["usage"]})
                yield TurnEnded()
            case "turn.failed":
                yield TurnErrored(str(message["error"].get("message") or "the turn failed"))
            case "error":  # not the end of the turn, which ``turn.failed`` reports
                yield log_event(str(message.get("message")), {}, level="warning")
            case "turn.started":
                pass
            case kind:
                yield log_event(f"the agent sent {kind}", dict(message))

    def _item(self, item: Item, *, done: bool) -> Iterator[CliEvent]:
        kind = item.get("type")
        if kind == "agent_message":
            if done:
                yield self._text(str(item.get("text") or ""))
            return
        self._last_was_text = False
        match kind:
            case "reasoning":
                if done:
                    yield JournalLine(JournalKind.MESSAGE_THOUGHT, {"text": str(item.get("text") or "")})
            case "todo_list":
                steps = item.get("items") or ()
                yield plan_event((str(step.get("text")), _state_of(step)) for step in steps)
            case "error":
                yield log_event(str(item.get("message")), {}, level="warning")
            case "command_execution" | "file_change" | "mcp_tool_call" | "web_search":
                yield from self._tool(item, done=done)
            case other:
                yield log_event(f"the agent sent an item {other}", dict(item))

    def _text(self, text: str) -> JournalLine:
        # Each item is a whole message, but the log joins consecutive texts: keep them apart as paragraphs.
        if self._last_was_text:
            text = f"\n\n{text}"
        self._last_was_text = True
        return JournalLine(JournalKind.MESSAGE_AGENT, {"text": text})

    def _tool(self, item: Item, *, done: bool) -> Iterator[JournalLine]:
        call_id = f"{self._turn}-{item.get('id')}"
        if call_id not in self._begun:
            self._begun.add(call_id)
            title, tool_kind, arguments = _tool_call_fields(item)
            yield tool_call_event(call_id, title, tool_kind, arguments)
        if done:
            failed = item.get("status", "completed") not in ("completed", *_UNFINISHED)
            outcome, code = {}, item.get("exit_code")
            if isinstance(code, int):
                outcome["raw_output"] = {"exit_code": code}
            yield tool_result_event(call_id, _result_text(item), failed=failed, **outcome)


def _state_of(step: Mapping[str, Any]) -> str:
    if step.get("completed") is True:
        return "completed"
    return "pending"


def _tool_call_fields(item: Item) -> tuple[str, str, Any]:
    """Return title, kind and arguments of a tool call."""
    match item["type"]:
        case "command_execution":
            command = str(item.get("command") or "")
            return (command.splitlines() or [""])[0][:200], "execute", {"command": command}
        case "file_change":
            changes = item.get("changes") or []
            paths = [str(change.get("path")) for change in changes]
            return f"Edit {', '.join(paths)}"[:200], "edit", {"changes": changes}
        case "web_search":
            return f"Search the web: {item.get('query') or ''}"[:200], "fetch", {"query": item.get("query")}
    return f"{item.get('server')}: {item.get('tool')}"[:200], "other", item.get("arguments")


def _result_text(item: Item) -> str:
    if isinstance(item.get("error"), dict):
        return str(item["error"].get("message"))
    result = item.get("result")
    content = object_of(result).get("content")
    return str(item.get("aggregated_output") or "") or joined_text(content or "")


DIALECT: Final = Dialect("codex", "codex exec", _turn, CodexEventReader, takes_images=True)


def create(host: Host, marker: Mapping[str, str]) -> Driver:
    """Return a driver that starts the agent for each turn; ``marker`` is added to its environment."""
    return PerTurnDriver(host, marker, DIALECT)
