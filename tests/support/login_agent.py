"""The demo agent, logged out at first: ``python -m tests.support.login_agent``.

It publishes three ways to log in: *demo*, which succeeds at once, or with ``--login-asks`` when somebody has followed a
link; *expired*, which always fails; and *terminal*. With ``--login-hangs``, *demo* never ends. What logs it in is the
file ``logged-in`` in the directory of its conversations.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from executors_app.demo_agent.agent import DemoAgent, RpcError, default_home

COMMAND: Final[dict[str, Any]] = {
    "command": [sys.executable, "-m", "tests.support.login_agent"],
    "env": {"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
}
"""What a profile of it has."""
_AUTH_REQUIRED: Final = -32000
_METHODS: Final[list[dict[str, Any]]] = [
    {"id": "demo", "name": "Demo account", "description": "Logs in without asking anything"},
    {"id": "expired", "name": "Expired account", "description": "A login that is always refused"},
]
_TERMINAL: Final = {"id": "terminal", "name": "In a terminal", "type": "terminal", "args": ["--log-in"]}


class LoginAgent(DemoAgent):
    """Opens conversations only while it is logged in."""

    def __init__(self, home: Path):
        super().__init__(home)
        self._mark, self._requests = home / "logged-in", home / "asked-to-log-in"
        self._methods, self._login_request = _METHODS, None

    def receive(self, message: dict[str, Any]) -> None:
        """Log in in a thread: a login may wait for ever, but must not outlive the client."""
        if message.get("method") != "authenticate":
            super().receive(message)
            return
        self._login_request = message.get("id")
        threading.Thread(target=self._answer, args=(message,), daemon=True).start()

    def handle(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """Answer as the demo agent does once it is logged in."""
        if method == "initialize":
            client = (params.get("clientCapabilities") or {}).get("auth") or {}
            self._methods = [*_METHODS, *([_TERMINAL] if client.get("terminal") is True else [])]
        if method == "authenticate":
            return self._authenticate(params)
        if method == "logout":
            self._mark.unlink(missing_ok=True)
            return {}
        if method in ("session/new", "session/load") and not self._mark.exists():
            raise RpcError(_AUTH_REQUIRED, "Authentication required")
        return super().handle(method, params)

    def initialize(self) -> dict[str, Any]:
        """Return the demo agent's capabilities, and the ways to log in."""
        initialized = super().initialize()
        return {
            **initialized,
            "agentCapabilities": {**initialized["agentCapabilities"], "auth": {"logout": {}}},
            "authMethods": self._methods,
        }

    def _authenticate(self, params: Mapping[str, Any]) -> dict[str, Any]:
        if params.get("methodId") == "expired":
            raise RpcError(_AUTH_REQUIRED, "This account has expired")
        if params.get("methodId") != "demo":
            raise RpcError(-32602, "Invalid params: there is no such way to log in")
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._requests.open("a", encoding="utf-8") as file:
            file.write(f"{self._login_request}\n")
        if "--login-hangs" in sys.argv:
            threading.Event().wait()
        question = {
            "requestId": self._login_request,
            "mode": "url",
            "elicitationId": "demo-login",
            "url": "https://example.org/login",
            "message": "Log in to the demo account",
        }
        if "--login-asks" in sys.argv:
            answer = self.call("elicitation/create", question, threading.Event())
            if answer.get("action") != "accept":
                raise RpcError(_AUTH_REQUIRED, "The login was declined")
        self._mark.touch()
        return {}


if __name__ == "__main__":
    LoginAgent(default_home()).run()
