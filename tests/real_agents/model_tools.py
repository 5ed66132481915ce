"""Tool calls of the loopback model: which of the offered tools it calls, and with which arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Json = Mapping[str, Any]

_SHELL: Final = re.compile(r"bash|shell|exec_command|execute|run_command|terminal", re.IGNORECASE)
_QUESTION: Final = re.compile(r"ask_?user|request_user_input|^question$", re.IGNORECASE)
_COMMAND_FIELDS: Final = ("command", "cmd", "commands", "script")
_OUTSIDE: Final = {"sandbox_permissions": "require_escalated", "justification": "May I?"}
"""Arguments with which Codex asks before it runs a command."""
_EMPTY: Final[Json] = {"boolean": False, "integer": 30_000, "number": 30_000, "array": [], "object": {}}
_QUESTION_ARGUMENTS: Final = {
    "question": "Which colour?",
    "questions": [
        {
            "id": "colour",
            "question": "Which colour?",
            "header": "Colour",
            "multiSelect": False,
            "options": [{"label": "Red", "description": "The first"}, {"label": "Blue", "description": "The second"}],
        }
    ],
}
"""Arguments for the question tools of the agents; each takes a part of them."""


@dataclass(frozen=True)
class ToolCall:
    """A call of one of the agent's tools."""

    name: str
    arguments: Json


def wanted_call(text: str, tools: Mapping[str, Json]) -> ToolCall | None:
    """Return the tool call that a user's text asks for, if the agent offers a tool for it.

    *RUN command* runs a command in the agent's shell; with *APPROVAL* outside the agent's sandbox, if the tool offers
    that. *QUESTION* asks the user something. ``tools`` are JSON schemas.
    """
    if found := re.search(r"\bRUN (.+)", text):
        name = _first(_SHELL, tools)
        if not name:
            return None
        known = tools[name].get("properties") or {}
        outside = _OUTSIDE if "APPROVAL" in text and _OUTSIDE.keys() <= known.keys() else {}
        return ToolCall(name, {**_shell_arguments(found[1].strip(), tools[name]), **outside})
    name = _first(_QUESTION, tools) if "QUESTION" in text else None
    return ToolCall(name, _fitted(_QUESTION_ARGUMENTS, tools[name])) if name else None


def offered_tools(request: Json) -> dict[str, Json]:
    """Return the schemas of the tools in a request of any of the APIs, by name."""
    found = [tool.get("function", tool) for tool in request.get("tools") or ()]
    return {
        str(tool["name"]): tool.get("parameters") or tool.get("input_schema") or {} for tool in found if "name" in tool
    }


def _first(pattern: re.Pattern[str], tools: Mapping[str, Json]) -> str | None:
    return next((name for name in tools if pattern.search(name)), None)


def _fitted(value: Any, schema: Json) -> Any:
    """Return the value without fields that its schema lacks: agents refuse a call with other fields."""
    if isinstance(value, list):
        return [_fitted(item, schema.get("items") or {}) for item in value]
    known = schema.get("properties")
    if not isinstance(value, dict) or not known:
        return value
    return {name: _fitted(item, known[name]) for name, item in value.items() if name in known}


def _shell_arguments(command: str, schema: Json) -> Json:
    properties: Mapping[str, Json] = schema.get("properties") or {}
    arguments: dict[str, Any] = {}
    for name, value in properties.items():
        kind = value.get("type")
        if name in _COMMAND_FIELDS:
            arguments[name] = ["bash", "-c", command] if kind == "array" else command
        elif name in (schema.get("required") or ()):
            arguments[name] = _EMPTY.get(str(kind), (value.get("enum") or ["a command"])[0])
    return arguments or {"command": command}
