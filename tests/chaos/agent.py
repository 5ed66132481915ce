"""An agent that records its prompts and its output: ``python -m tests.chaos.agent --behaviour NAME --home DIR``.

The records are in ``<home>/<execution id>``: ``prompts.jsonl`` has a line for each prompt, synced to disk before the
agent handles it; ``output.jsonl`` has each chunk of an answer, written before it is sent. Every answer begins with a
heading that is unique in the deployment, so that a log can be compared answer by answer.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any, Final

from executors_app.demo_agent.agent import Turn
from executors_app.wire.protocol import EXECUTION_MARKER
from tests.support import faulty_agent
from tests.support.faulty_agent import FaultyAgent

HEADING: Final = re.compile(r"<answer (\d+-\d+)>\n")
PROMPTS_FILE: Final = "prompts.jsonl"
OUTPUT_FILE: Final = "output.jsonl"


def recording_agent(kind: type[FaultyAgent]) -> type[FaultyAgent]:
    """Return a subclass of an agent that records its prompts and its output."""

    class RecordingAgent(kind):  # type: ignore[misc,valid-type]
        module = "tests.chaos.agent"

        def __init__(self, home: Path, options: argparse.Namespace):
            super().__init__(home / os.environ[EXECUTION_MARKER], options)
            options.home = home
            self._turn_id = self._answer_id = ""

        def prompt(self, params: dict[str, Any]) -> dict[str, Any]:
            text = "\n".join(block["text"] for block in params["prompt"] if block.get("type") == "text")
            self._turn_id = f"{os.getpid()}-{time.time_ns()}"
            _append_record(self.home / PROMPTS_FILE, sync=True, answer=self._turn_id, text=text)
            return dict(super().prompt(params))

        def answer(self, turn: Turn, text: str) -> None:
            self._answer_id = self._turn_id
            try:
                turn.say(f"<answer {self._answer_id}>\n")
                super().answer(turn, text)
            finally:
                self._answer_id = ""

        def notify_update(self, conversation_id: str, update: dict[str, Any]) -> None:
            if self._answer_id and update["sessionUpdate"] == "agent_message_chunk":
                _append_record(self.home / OUTPUT_FILE, answer=self._answer_id, text=update["content"]["text"])
            super().notify_update(conversation_id, update)

    return RecordingAgent


def _append_record(path: Path, *, sync: bool = False, **entry: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(json.dumps(entry).encode() + b"\n")
        file.flush()
        if sync:
            os.fsync(file.fileno())


def command(behaviour: str, home: Path, *args: str) -> list[str]:
    """Return the command line of a behaviour; it needs ``PYTHONPATH``."""
    return [sys.executable, "-m", "tests.chaos.agent", "--behaviour", behaviour, "--home", str(home), *args]


if __name__ == "__main__":
    faulty_agent.main(recording_agent)
