"""An agent that costs everyone as much as it can: ``python -m tests.hostile_load.agent``.

The prompt ``attack N`` sends, for N seconds, what is expensive to store, render, redact or search. Anything else is
answered as by the demo agent.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from executors_app.demo_agent.agent import DemoAgent, Turn, default_home

KEYWORD_BOMB: Final = "recaptcha_key " * 570
"""8,000 characters that made the rules for secrets compare almost every pair of words."""
BLANK_LINES: Final = f"```c\n{chr(10) * 20_000}```\n"
TABLE: Final = "|a|b|c|d|\n|-|-|-|-|\n" + "|x|y|*z*|`w`|\n" * 9_000
NESTED: Final = "> " * 2_000 + "[" * 4_000 + "\n" + "*_" * 8_000
HIDDEN: Final = "\u202etxet\u202c \x1b[31m\x1b]0;title\x07 " * 500
BIG_SOURCE: Final = "big.c"
UNTRACKED_FILES: Final = 2_000
_ATTACK: Final = re.compile(r"attack ([0-9.]+)")


def command() -> list[str]:
    """Return the command line; it needs ``PYTHONPATH``."""
    return [sys.executable, "-m", "tests.hostile_load.agent"]


class HostileAgent(DemoAgent):
    """The demo agent with one more prompt."""

    def answer(self, turn: Turn, text: str) -> None:
        """Attack for the given number of seconds, or answer as usual."""
        found = _ATTACK.search(text)
        if found is None:
            super().answer(turn, text)
            return
        _litter(Path(turn.cwd))
        deadline = time.monotonic() + float(found[1])
        while time.monotonic() < deadline:
            for update in _round():
                self.notify_update(turn.conversation.id, update)
                if time.monotonic() > deadline:
                    break
                turn.rest(0)


def _litter(directory: Path) -> None:
    """Leave files that are expensive to show: a source without an end, many new files, and one that compresses well."""
    (directory / BIG_SOURCE).write_text("\n" * 199_000)
    (directory / "zeros").write_bytes(bytes(20 << 20))
    folder = directory / "many"
    folder.mkdir(exist_ok=True)
    for number in range(UNTRACKED_FILES):
        (folder / f"{number}.txt").write_text("word\n" * 20)


def _round() -> Iterator[dict[str, Any]]:
    yield from (_say("x" * 16_000) for _ in range(100))
    for text in (BLANK_LINES, TABLE, NESTED, HIDDEN, *(KEYWORD_BOMB for _ in range(15))):
        yield _say(text)
        yield from _tool_with_small_diffs(20)  # ends the message, so that the next text begins another one
    yield from _tool_with_small_diffs(2_000)
    yield {"sessionUpdate": "session_info_update", "title": HIDDEN}
    yield {"sessionUpdate": "plan", "entries": [_entry(number) for number in range(500)]}


def _say(text: str) -> dict[str, Any]:
    return {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}


def _entry(number: int) -> dict[str, str]:
    return {"content": f"step {number} {KEYWORD_BOMB[:200]}", "priority": "high", "status": "pending"}


def _tool_with_small_diffs(count: int) -> Iterator[dict[str, Any]]:
    call = {"toolCallId": f"call-{time.monotonic_ns()}", "title": KEYWORD_BOMB[:300], "kind": "edit"}
    diffs = [
        {"type": "diff", "path": f"/file-{number}", "oldText": "a\nb\nc\n", "newText": "a\nB\nc\n"}
        for number in range(count)
    ]
    yield {"sessionUpdate": "tool_call", **call, "status": "in_progress", "rawInput": {"text": KEYWORD_BOMB}}
    update = {"sessionUpdate": "tool_call_update", "toolCallId": call["toolCallId"], "status": "completed"}
    yield {**update, "content": diffs}


if __name__ == "__main__":
    HostileAgent(default_home()).run()
