"""A fake ``codex exec --json`` of version 0.169.0 (``tests/real_agents`` compares the two)."""

from __future__ import annotations

import sys

from tests.agents.standins.behaviour import Memory, answer, print_error, print_line, print_message

USAGE = {
    "input_tokens": 10,
    "cached_input_tokens": 0,
    "cache_write_input_tokens": 0,
    "output_tokens": 2,
    "reasoning_output_tokens": 0,
}


class Output:
    def __init__(self) -> None:
        self._items = 0

    def item(self, event: str, item_id: str, **item: object) -> None:
        print_message(type=f"item.{event}", item={"id": item_id, **item})

    def next_id(self) -> str:
        self._items += 1
        return f"item_{self._items - 1}"

    def say(self, text: str) -> None:
        self.item("completed", self.next_id(), type="agent_message", text=text)

    def use_tool(self, command: str, output: str) -> None:
        item_id, shell = self.next_id(), f"/bin/bash -lc '{command}'"
        what = {"type": "command_execution", "command": shell}
        self.item("started", item_id, **what, aggregated_output="", exit_code=None, status="in_progress")
        self.item("completed", item_id, **what, aggregated_output=output, exit_code=0, status="completed")

    def ask(self, command: str) -> str:
        return "never asked"

    def fail(self, message: str) -> None:
        print_message(type="error", message=message)
        print_message(type="turn.failed", error={"message": message})


def main() -> int:
    arguments = sys.argv[1:]
    if "--version" in arguments:
        print_line("codex-cli 0.169.0")
        return 0
    resumes = "resume" in arguments
    prompt = sys.stdin.read()
    if not prompt.strip():
        print_error("No prompt provided via stdin.")
        return 1
    memory = Memory.load(arguments[-2]) if resumes else Memory.create()
    if memory is None:
        error = f"thread/resume failed: no rollout found for thread id {arguments[-2]} (code -32600)"
        print_error(f"Error: thread/resume: {error}")
        return 1
    print_message(type="thread.started", thread_id=memory.id)
    print_message(type="turn.started")
    if not answer(memory, prompt, Output()):
        return 1
    print_message(type="turn.completed", usage=USAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
