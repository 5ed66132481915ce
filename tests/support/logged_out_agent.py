"""The demo agent without a login: it starts no conversation until the file ``logged-in`` is in its HOME."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from executors_app.demo_agent.agent import DemoAgent, RpcError, default_home

LOGGED_IN: Final = "logged-in"
AUTH_REQUIRED: Final = -32000


class LoggedOutAgent(DemoAgent):
    """Demo agent that refuses new conversations until it is logged in."""

    def handle(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """Answer as the demo agent does once it is logged in."""
        if method == "session/new" and not (Path.home() / LOGGED_IN).exists():
            raise RpcError(AUTH_REQUIRED, "Authentication required")
        return super().handle(method, params)


if __name__ == "__main__":
    LoggedOutAgent(default_home()).run()
