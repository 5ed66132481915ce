"""A fake ``amp --execute --stream-json``, with its SDK's types."""

from __future__ import annotations

import sys

from tests.agents.standins.behaviour import Memory, answer, print_error, print_line
from tests.agents.standins.messages import MessageOutput


class Output(MessageOutput):
    def fail(self, message: str) -> None:
        self.result("error_during_execution", is_error=True, error=message)


def main() -> int:
    arguments = sys.argv[1:]
    if "--version" in arguments:
        print_line("0.0.1790142914-g7618fb (released 2026-11-20)")
        return 0
    memory = Memory.load(arguments[2]) if arguments[0] == "threads" else Memory.create()
    if memory is None:
        print_error(f"Error: Thread {arguments[2]} not found")
        return 1
    prompt = sys.stdin.read()
    out = Output(memory.id, with_uuids=False)
    out.begin()
    out.block("user", type="text", text=prompt)
    if not answer(memory, prompt, out):
        return 1
    out.result(result="done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
