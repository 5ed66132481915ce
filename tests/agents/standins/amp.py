"""A stand-in for ``amp --execute --stream-json``, with its SDK's types."""

from __future__ import annotations

import sys

from tests.agents.standins.behaviour import Memory, answer, complain, say_plainly
from tests.agents.standins.messages import MessageMouth


class Mouth(MessageMouth):
    def fail(self, message: str) -> None:
        self.result("error_during_execution", is_error=True, error=message)


def main() -> int:
    arguments = sys.argv[1:]
    if "--version" in arguments:
        say_plainly("0.0.1790142914-g7618fb (released 2026-11-20)")
        return 0
    memory = Memory.taken_up(arguments[2]) if arguments[0] == "threads" else Memory.fresh()
    if memory is None:
        complain(f"Error: Thread {arguments[2]} not found")
        return 1
    prompt = sys.stdin.read()
    mouth = Mouth(memory.id, with_uuids=False)
    mouth.begin()
    mouth.block("user", type="text", text=prompt)
    if not answer(memory, prompt, mouth):
        return 1
    mouth.result(result="done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
