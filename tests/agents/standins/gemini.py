"""A fake ``gemini --output-format=stream-json`` of version 0.61.0."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

from tests.agents.standins.behaviour import Memory, answer, print_error, print_line, print_message

STATS = {"total_tokens": 12, "input_tokens": 10, "output_tokens": 2, "cached": 0, "duration_ms": 60, "tool_calls": 0}


def event(kind: str, **body: Any) -> None:
    print_message(type=kind, timestamp=datetime.now(UTC).isoformat(), **body)


class Output:
    def say(self, text: str) -> None:
        event("message", role="assistant", content=text, delta=True)

    def use_tool(self, command: str, output: str) -> None:
        event("tool_use", tool_name="run_shell_command", tool_id="run__call_1", parameters={"command": command})
        event("tool_result", tool_id="run__call_1", status="success", output=output)

    def ask(self, command: str) -> str:
        return "never asked"

    def fail(self, message: str) -> None:
        event("result", status="error", error={"type": "Error", "message": message}, stats=STATS)


def main() -> int:
    arguments = sys.argv[1:]
    if "--version" in arguments:
        print_line("0.61.0")
        return 0
    resumed = next((word.partition("=")[2] for word in arguments if word.startswith("--resume=")), None)
    prompt = sys.stdin.read()
    memory = Memory.load(resumed) if resumed else Memory.create()
    if memory is None:
        print_error(f'Error resuming session: Invalid session identifier "{resumed}".')
        return 42
    event("init", session_id=memory.id, model="stand-in")
    event("message", role="user", content=prompt)
    if not answer(memory, prompt, Output()):
        return 1
    event("result", status="success", stats=STATS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
