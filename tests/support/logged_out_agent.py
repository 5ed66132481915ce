"""The demo agent, logged out: no conversation begins until the file ``logged-in`` is in its HOME."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from executors_app.demo_agent import DemoAgent, RpcError, default_home

LOGGED_IN: Final = "logged-in"
AUTH_REQUIRED: Final = -32000


class LoggedOutAgent(DemoAgent):
    """Refuses new conversations until somebody has logged in."""

    def handle(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """Answer as the demo agent, after the login."""
        if method == "session/new" and not (Path.home() / LOGGED_IN).exists():
            raise RpcError(AUTH_REQUIRED, "Authentication required")
        return super().handle(method, params)


if __name__ == "__main__":
    LoggedOutAgent(default_home()).run()
