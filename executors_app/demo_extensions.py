"""The optional parts of ACP that the demo agent plays: settings, a question, a login, JSON answers.

With ``--requires-login`` it is logged out at first and publishes three ways to log in: *demo*, which succeeds at once,
or with ``--login-asks`` when somebody has followed a link; *expired*, which always fails; and *terminal*, which runs it
with ``--log-in``. With ``--login-hangs``, *demo* never ends. What logs it in is the file ``logged-in`` in the directory
of its conversations.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from executors_app.demo_conversation import RpcError

MODES: Final = {"act": ("Act", "Do what the prompt says"), "plan": ("Plan", "Only say what would be written")}
_COMMANDS: Final = {
    "work": ("Work for some seconds", "seconds"),
    "remember": ("Remember a word", "word"),
    "write": ("Write a file", "file and text"),
    "tool": ("Make a tool call", ""),
    "ask": ("Ask for a permission", ""),
}
"""Description and hint of each command."""


class Settings:
    """The settings of one conversation; they begin anew with each process."""

    def __init__(self) -> None:
        self.mode, self.capitals = "act", False

    def offered(self, *, switch: bool) -> dict[str, Any]:
        """Return the modes with the present one, and the switch if the client knows such options."""
        modes = [{"id": key, "name": name, "description": more} for key, (name, more) in MODES.items()]
        told: dict[str, Any] = {"modes": {"currentModeId": self.mode, "availableModes": modes}}
        if switch:
            option = {"id": "capitals", "name": "Capitals", "description": "Answer in capital letters"}
            told["configOptions"] = [{**option, "type": "boolean", "currentValue": self.capitals}]
        return told

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
    """Whether the client's ``initialize`` says that it knows boolean options."""
    session = (params.get("clientCapabilities") or {}).get("session") or {}
    return (session.get("configOptions") or {}).get("boolean") is not None


def commands_update() -> dict[str, Any]:
    """Return the update that reports the commands."""
    commands = [
        {"name": name, "description": text, **({"input": {"hint": hint}} if hint else {})}
        for name, (text, hint) in _COMMANDS.items()
    ]
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
    """Ask the question and repeat the answer; say so if the client shows no forms."""
    if not turn.agent.asks_forms:
        turn.say("I cannot ask questions here.\n")
        return
    params = {"sessionId": turn.conversation.id, **QUESTION}
    answer = turn.agent.call("elicitation/create", params, turn.cancelled)
    turn.rest(0)  # the answer to the question of a cancelled turn is no answer
    content = json.dumps(answer.get("content") or {}, sort_keys=True)
    words = {"accept": f"The answer was {content}.\n", "decline": "You declined to answer.\n"}
    turn.say(words.get(str(answer.get("action")), "You gave no answer.\n"))


_AUTH_REQUIRED: Final = -32000
Ask = Callable[[str, dict[str, Any]], dict[str, Any]]
"""Sends a request to the client and returns its result."""
_MESSAGE: Final = "Log in to the demo account"
_METHODS: Final[Sequence[dict[str, Any]]] = (
    {"id": "demo", "name": "Demo account", "description": "Logs in without asking anything"},
    {"id": "expired", "name": "Expired account", "description": "A login that is always refused"},
)
_TERMINAL: Final[dict[str, Any]] = {
    "id": "terminal",
    "name": "Demo account in a terminal",
    "type": "terminal",
    "args": ["--log-in"],
}


class Login:
    """Whether the agent is logged in; ``arguments`` are those of its command line."""

    def __init__(self, home: Path, arguments: Sequence[str]):
        self._mark, self._asked = home / "logged-in", home / "asked-to-log-in"
        self._is_required, self._is_terminal = "--requires-login" in arguments, "--log-in" in arguments
        self._offers_terminal = False
        self._asks, self._hangs = "--login-asks" in arguments, "--login-hangs" in arguments

    def run_in_terminal(self) -> bool:
        """Log in as a person would in a terminal; returns False if the command line does not ask for it."""
        if self._is_terminal:
            self._log_in()
            print("The demo agent is logged in.")  # noqa: T201  (a person reads it in a terminal)
        return self._is_terminal

    def read_client(self, params: Mapping[str, Any]) -> None:
        """Note from the client's ``initialize`` whether it can run a login in a terminal."""
        client = (params.get("clientCapabilities") or {}).get("auth") or {}
        self._offers_terminal = client.get("terminal") is True

    def capabilities(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return what ``agentCapabilities`` says of logins, and ``authMethods``."""
        if not self._is_required:
            return {}, []
        return {"auth": {"logout": {}}}, [*_METHODS, *([_TERMINAL] if self._offers_terminal else [])]

    def require(self) -> None:
        """Raise RpcError if the agent is logged out."""
        if self._is_required and not self._mark.exists():
            raise RpcError(_AUTH_REQUIRED, "Authentication required")

    def handle(self, method: str, params: Mapping[str, Any], request_id: Any, ask: Ask) -> dict[str, Any]:
        """Answer ``authenticate`` or ``logout``; raises RpcError."""
        if method == "logout":
            self._mark.unlink(missing_ok=True)
            return {}
        if params.get("methodId") == "expired":
            raise RpcError(_AUTH_REQUIRED, "This account has expired")
        if params.get("methodId") != "demo":
            raise RpcError(-32602, "Invalid params: there is no such way to log in")
        self._mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._asked.open("a", encoding="utf-8") as asked:
            asked.write(f"{request_id}\n")
        if self._hangs:
            threading.Event().wait()
        link = {"mode": "url", "elicitationId": "demo-login", "url": "https://example.org/login", "message": _MESSAGE}
        if self._asks and ask("elicitation/create", {"requestId": request_id, **link}).get("action") != "accept":
            raise RpcError(_AUTH_REQUIRED, "The login was declined")
        self._log_in()
        return {}

    def _log_in(self) -> None:
        self._mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._mark.touch()


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
    is_schema = isinstance(found, dict) and isinstance(found.get("properties"), dict)
    return found if is_schema else None


def example(schema: object, depth: int = 0) -> Any:
    """Return a value that satisfies a plain JSON schema: true, 1, "demo", the first of several choices."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return None
    if choices := schema.get("enum"):
        return choices[0] if isinstance(choices, list) else None
    properties = schema.get("properties")
    if isinstance(properties, dict):
        return {name: example(one, depth + 1) for name, one in properties.items()}
    return _EXAMPLES.get(str(schema.get("type")))
