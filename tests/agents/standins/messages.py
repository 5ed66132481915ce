"""``stream-json`` output of Claude Code and Amp."""

from __future__ import annotations

import uuid
from typing import Any

from tests.agents.standins.behaviour import print_message

USAGE = {"input_tokens": 10, "output_tokens": 2, "cache_read_input_tokens": 0}


class MessageOutput:
    """The lines of one turn; ``with_uuids`` as in Claude Code."""

    def __init__(self, session_id: str, *, with_uuids: bool):
        self._session_id, self._with_uuids = session_id, with_uuids
        self.last_uuid = ""

    def print_message(self, kind: str, /, **body: Any) -> None:
        self.last_uuid = str(uuid.uuid4())
        more = {"uuid": self.last_uuid} if self._with_uuids else {}
        print_message(type=kind, session_id=self._session_id, **body, **more)

    def begin(self) -> None:
        self.print_message("system", subtype="init", cwd=".", tools=["Bash"], mcp_servers=[], model="stand-in")

    def block(self, kind: str, /, **block: Any) -> None:
        message = {"role": kind, "content": [block]}
        more = {"id": "msg_1", "type": "message", "model": "stand-in", "stop_reason": None, "usage": USAGE}
        line = {**message, **more} if kind == "assistant" else message
        self.print_message(kind, message=line, parent_tool_use_id=None)

    def say(self, text: str) -> None:
        self.block("assistant", type="text", text=text)

    def use_tool(self, command: str, output: str) -> None:
        call = f"toolu_{uuid.uuid4().hex}"
        self.block("assistant", type="tool_use", id=call, name="Bash", input={"command": command})
        self.block("user", type="tool_result", tool_use_id=call, content=output, is_error=False)

    def ask(self, command: str) -> str:
        return "never asked"

    def result(self, subtype: str = "success", *, is_error: bool = False, **body: Any) -> None:
        figures = {"duration_ms": 10, "duration_api_ms": 5, "num_turns": 1, "usage": USAGE, "total_cost_usd": 0.01}
        self.print_message("result", subtype=subtype, is_error=is_error, **figures, **body)
