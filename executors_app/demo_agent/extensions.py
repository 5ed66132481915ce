"""What the demo agent keeps and offers: its conversations (JSONL files), settings, a question, JSON answers."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
NUMBER: Final = re.compile(r"\byour number is (\d{1,9})\b|\badd (\d{1,9})\b", re.IGNORECASE)
"""A line that gives a number, or adds to it."""
_CONTINUES: Final = re.compile(
    r"^(?:Your process was restarted|Your last turn)\b.*?^The last request was:\s+((?:^>.*\n?)+)",
    re.MULTILINE | re.DOTALL,
)
"""The prompt by which Kandev has an interrupted turn continued (``sessions_app.turns.rules.continuation``)."""
_WORD: Final = re.compile(r"\bremember\s+(?:the word\s+)?([^\s.,;:!?\"']+)", re.IGNORECASE)


class RpcError(Exception):
    """An error answer of JSON-RPC."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code, self.message = code, message


class Conversation:
    """One conversation: a JSONL file of ``{"role", "text"}`` and a log of everything that was said."""

    def __init__(self, home: Path, conversation_id: str, cwd: str):
        self.id, self.cwd = conversation_id, cwd
        self._path = home / f"{conversation_id}.jsonl"
        self._said = home / f"{conversation_id}.said"

    @classmethod
    def create(cls, home: Path, cwd: str) -> Conversation:
        """Create a new, empty conversation on disk."""
        conversation = cls(home, f"demo-{uuid.uuid4().hex}", cwd)
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        conversation._path.touch()
        return conversation

    @classmethod
    def load(cls, home: Path, conversation_id: object, cwd: str) -> Conversation:
        """Load a conversation; raises RpcError -32002 if there is none."""
        known = isinstance(conversation_id, str) and _ID.fullmatch(conversation_id)
        if not known or not (home / f"{conversation_id}.jsonl").exists():
            raise RpcError(-32002, f"Resource not found: conversation {conversation_id} is gone")
        return cls(home, str(conversation_id), cwd)

    def entries(self) -> Iterator[tuple[str, str]]:
        """Yield role and text of each entry, without a line that a kill left incomplete."""
        for line in self._path.read_bytes().splitlines():
            try:
                entry = json.loads(line)
                yield entry["role"], entry["text"]
            except (ValueError, KeyError, TypeError):
                continue

    def keep(self, role: str, text: str, *, sync: bool = True) -> None:
        """Append one entry; with ``sync`` it is on disk before this returns."""
        line = json.dumps({"role": role, "text": text}).encode() + b"\n"
        with self._path.open("a+b") as file:
            if file.tell() and not self._ends_with_newline(file.tell()):
                line = b"\n" + line
            file.write(line)
            file.flush()
            if sync:
                os.fsync(file.fileno())

    def log_said(self, text: str) -> None:
        """Append to the log of everything said, before it is sent."""
        with self._said.open("ab") as file:
            file.write(text.encode())

    def word(self) -> str | None:
        """Return the last word that the user asked to remember."""
        words: list[str] = [word for role, text in self.entries() if role == "user" for word in _WORD.findall(text)]
        if not words:
            return None
        return words[-1]

    def number(self) -> int | None:
        """Return the user's number with everything that was to be added to it."""
        number = None
        for text in (text for role, text in self.entries() if role == "user"):
            # A quoted request was counted when it was first sent: to continue it does not add its number again.
            for given, added in NUMBER.findall(_without_quotes(text)):
                if given:
                    number = int(given)
                elif number is not None:
                    number += int(added)
        return number

    def _ends_with_newline(self, size: int) -> bool:
        with self._path.open("rb") as file:
            file.seek(size - 1)
            return file.read(1) == b"\n"


def describe_files(blocks: list[dict[str, Any]]) -> str:
    """Return what a prompt carries beside text, such as ``1 image, 2 files``; empty if nothing."""
    kinds = [block.get("type") for block in blocks]
    counts = {"image": kinds.count("image"), "file": kinds.count("resource")}
    return ", ".join(f"{count} {word}{'s' * (count > 1)}" for word, count in counts.items() if count)


def _without_quotes(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith(">"))


def interrupted_request(text: str) -> list[str]:
    """Return the lines of the request that a continue prompt quotes; empty for any other prompt."""
    found = _CONTINUES.search(text)
    if found is None:
        return []
    lines = [line.removeprefix(">").strip() for line in found[1].splitlines()]
    # If the continued turn was interrupted as well, the request quotes the previous continue prompt.
    return interrupted_request("\n".join(lines)) or lines


MODES: Final = {"act": ("Act", "Do what the prompt says"), "plan": ("Plan", "Only describe what would be written")}
_COMMANDS: Final = {
    "work": ("Work for some seconds", "seconds"),
    "remember": ("Remember a word", "word"),
    "write": ("Write a file", "file and text"),
    "tool": ("Make a tool call", ""),
    "ask": ("Ask for a permission", ""),
}
"""Description and hint of each command."""


class Settings:
    """The settings of one conversation; each process starts with the defaults."""

    def __init__(self) -> None:
        self.mode, self.capitals = "act", False

    def offered(self, *, switch: bool) -> dict[str, Any]:
        """Return the modes with the current one, and the switch if the client knows such options."""
        modes = [{"id": key, "name": name, "description": more} for key, (name, more) in MODES.items()]
        state: dict[str, Any] = {"modes": {"currentModeId": self.mode, "availableModes": modes}}
        if switch:
            option = {"id": "capitals", "name": "Capitals", "description": "Answer in capital letters"}
            state["configOptions"] = [{**option, "type": "boolean", "currentValue": self.capitals}]
        return state

    def set(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Set the mode or the switch and return the answer; raises RpcError."""
        if params.get("modeId") in MODES:
            self.mode = str(params["modeId"])
            return {}
        if params.get("configId") == "capitals" and isinstance(params.get("value"), bool):
            self.capitals = params["value"]
            return {"configOptions": self.offered(switch=True)["configOptions"]}
        raise RpcError(-32602, "Invalid params: there is no such setting")


def knows_switches(params: Mapping[str, Any]) -> bool:
    """Whether the client's ``initialize`` declares support for boolean options."""
    session = (params.get("clientCapabilities") or {}).get("session") or {}
    return (session.get("configOptions") or {}).get("boolean") is not None


def commands_update() -> dict[str, Any]:
    """Return the update that reports the commands."""
    commands: list[dict[str, Any]] = []
    for name, (description, hint) in _COMMANDS.items():
        command: dict[str, Any] = {"name": name, "description": description}
        if hint:
            command["input"] = {"hint": hint}
        commands.append(command)
    return {"sessionUpdate": "available_commands_update", "availableCommands": commands}


QUESTION: Final = {
    "mode": "form",
    "message": "How should I set up the database of the demo?",
    "requestedSchema": {
        "type": "object",
        "title": "Set up a database",
        "properties": {
            "engine": {
                "type": "string",
                "title": "Engine",
                "oneOf": [
                    {"const": "sqlite", "title": "SQLite", "description": "One file, nothing to install."},
                    {"const": "postgresql", "title": "PostgreSQL", "description": "A server, for several writers."},
                ],
            },
            "name": {
                "type": "string",
                "title": "Name",
                "description": "Small letters, digits and underscores.",
                "pattern": "^[a-z][a-z0-9_]*$",
                "maxLength": 30,
                "default": "demo",
            },
            "copies": {"type": "integer", "title": "Copies", "minimum": 1, "maximum": 9, "default": 1},
            "extras": {
                "type": "array",
                "title": "Extras",
                "items": {"type": "string", "enum": ["backups", "metrics", "test data"]},
                "maxItems": 2,
            },
            "encrypted": {"type": "boolean", "title": "Encrypt it", "default": True},
        },
        "required": ["engine", "name"],
    },
}


def shows_forms(initialize: dict[str, Any]) -> bool:
    """Return whether the client that sent this ``initialize`` shows forms."""
    elicitation = (initialize.get("clientCapabilities") or {}).get("elicitation") or {}
    return elicitation.get("form") is not None


def ask_question(turn: Any) -> None:
    """Ask the question and repeat the answer; report it if the client shows no forms."""
    if not turn.agent.asks_forms:
        turn.say("I cannot ask questions here.\n")
        return
    params = {"sessionId": turn.conversation.id, **QUESTION}
    answer = turn.agent.call("elicitation/create", params, turn.cancelled)
    turn.rest(0)  # the answer to the question of a cancelled turn is no answer
    content = json.dumps(answer.get("content") or {}, sort_keys=True)
    words = {"accept": f"The answer was {content}.\n", "decline": "You declined to answer.\n"}
    turn.say(words.get(str(answer.get("action")), "You gave no answer.\n"))


MAX_DEPTH: Final = 20
"""Levels of a schema that are read."""
_EXAMPLES: Final = {"boolean": True, "integer": 1, "number": 1, "string": "demo", "array": [], "object": {}}


def parse_schema(line: str) -> dict[str, Any] | None:
    """Return the object schema that the line consists of, or None."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, dict) and isinstance(found.get("properties"), dict):
        return found
    return None


def example(schema: object, depth: int = 0) -> Any:
    """Return a value that satisfies a plain JSON schema: true, 1, "demo", the first of several choices."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return None
    if choices := schema.get("enum"):
        if isinstance(choices, list):
            return choices[0]
        return None
    properties = schema.get("properties")
    if isinstance(properties, dict):
        return {name: example(one, depth + 1) for name, one in properties.items()}
    return _EXAMPLES.get(str(schema.get("type")))
