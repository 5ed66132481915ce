"""The demo agent's login, which nobody needs: with ``--requires-login`` it plays an agent that is logged out at first.

It publishes three ways: *demo*, which succeeds at once, or with ``--login-asks`` when somebody has followed a link;
*expired*, which always fails; and *terminal*, which runs it with ``--log-in``. With ``--login-hangs``, *demo* never
ends. What logs it in is the file ``logged-in`` in the directory of its conversations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from executors_app.demo_conversation import RpcError

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
