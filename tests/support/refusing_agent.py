"""The demo agent, which refuses one method: ``python -m tests.support.refusing_agent METHOD REASON``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from executors_app.demo_agent.agent import DemoAgent, RpcError, default_home


class RefusingAgent(DemoAgent):
    """Demo agent that answers every request for ``method`` with an error and its reason."""

    def __init__(self, home: Path, method: str, reason: str):
        super().__init__(home)
        self.refused, self.reason = method, reason

    def handle(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        if method == self.refused:
            raise RpcError(-32602, self.reason)
        return super().handle(method, params)


if __name__ == "__main__":
    RefusingAgent(default_home(), *sys.argv[1:]).run()
