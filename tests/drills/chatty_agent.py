"""An agent that sends a given number of updates as fast as it can, by default half of them pieces of text.

``python -m tests.drills.chatty_agent``; the prompt ``chatter N`` waits for the file ``go`` in its home, then sends
``updates(N)``; ``chatter N SHARE`` sends ``updates(N, SHARE)``. ``messages_from_updates`` and ``messages_from_events``
make a log comparable with the updates, message by message.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from executors_app.demo_agent.agent import DemoAgent, Turn, default_home

GO: Final = "go"
LEFT_OPEN: Final = "unfinished"
"""Status of a tool call without a result after its turn. Not imported: the agent runs without Django."""
PIECES: Final = ("word ", "\n", "é", "日本 ", "👩‍👩‍👧", "<b>", '"\\', "x" * 70)
ChatMessage = tuple[str, Any]
"""``("text", joined text)`` for adjacent pieces of text, ``("tool", number of the update)`` otherwise."""


def updates(count: int, texts: float = 0.5) -> Iterator[dict[str, Any]]:
    """Yield updates: a share of pieces of text, otherwise tool calls and tool updates, numbered in ``rawOutput``."""
    draw, call = random.Random(count), 0
    for number in range(1, count + 1):
        if draw.random() < texts:
            text = f"{number} {draw.choice(PIECES)}"
            yield {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        elif call == 0 or draw.random() < 0.3:
            call = number
            yield {**_tool("tool_call", call, number), "title": f"Call {call}", "kind": "read", "status": "in_progress"}
        else:
            yield {**_tool("tool_call_update", call, number), "status": draw.choice(["in_progress", "completed"])}


def _tool(update: str, call: int, number: int) -> dict[str, Any]:
    return {"sessionUpdate": update, "toolCallId": f"call-{call}", "rawOutput": number}


def messages_from_updates(messages: Iterable[Mapping[str, Any]]) -> list[ChatMessage]:
    """Return the agent's messages in these updates."""
    return _joined(
        ("text", one["content"]["text"]) if "content" in one else ("tool", one["rawOutput"]) for one in messages
    )


def messages_from_events(events: Iterable[tuple[str, Mapping[str, Any]]]) -> list[ChatMessage]:
    """Return the agent's text and tool calls in a log of (name, payload)."""
    roles: dict[str, str] = {}
    return _joined(filter(None, (_message(name, payload, roles) for name, payload in events)))


def _message(name: str, payload: Mapping[str, Any], roles: dict[str, str]) -> ChatMessage | None:
    if not name.startswith("session.message."):
        return None
    role = roles.setdefault(payload["message_id"], payload.get("role", ""))
    if role == "agent":
        return "text", payload.get("text", "") + payload.get("append", "")
    if role != "tool" or "payload" not in payload:
        return None
    call = payload["payload"]
    # At the end of the turn Kandev itself closes the calls that the agent has left open.
    return None if call.get("status") == LEFT_OPEN else ("tool", call.get("raw_output"))


def _joined(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    joined: list[ChatMessage] = []
    for kind, what in messages:
        if kind == "text" and joined and joined[-1][0] == "text":
            joined[-1] = (kind, joined[-1][1] + what)
        elif (kind, what) != ("text", ""):
            joined.append((kind, what))
    return joined


def command() -> list[str]:
    """Return the command line; it needs ``PYTHONPATH``."""
    return [sys.executable, "-m", "tests.drills.chatty_agent"]


class ChattyAgent(DemoAgent):
    """The demo agent with one more prompt."""

    def answer(self, turn: Turn, text: str) -> None:
        """Wait for the file ``go``, then send all updates."""
        while not (self.home / GO).exists():
            turn.rest(0.02)
        count, *texts = text.split()[1:]
        for update in updates(int(count), *map(float, texts)):
            self.notify_update(turn.conversation.id, update)


def journal_ends(directory: Path) -> bool:
    """Return whether the newest segment of a journal has the end of the turn."""
    segments = sorted(directory.glob("*.jsonl"))
    return bool(segments) and b'"turn.completed"' in segments[-1].read_bytes()


if __name__ == "__main__":
    ChattyAgent(default_home()).run()
