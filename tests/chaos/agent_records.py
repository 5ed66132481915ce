"""The agent's own records, and the log of a session split into the same answers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tests.chaos.agent import HEADING, OUTPUT_FILE, PROMPTS_FILE
from tests.chaos.deployment import ChaosSession


def received_prompts(session: ChaosSession) -> dict[str, str]:
    """Return the texts of the prompts that the agent received, by answer id, in order."""
    return {line["answer"]: line["text"] for line in _lines(session, PROMPTS_FILE)}


def output_texts(session: ChaosSession) -> dict[str, str]:
    """Return the agent's output, by answer id."""
    output: dict[str, str] = defaultdict(str)
    for line in _lines(session, OUTPUT_FILE):
        output[line["answer"]] += line["text"]
    return dict(output)


def _lines(session: ChaosSession, name: str) -> list[Mapping[str, Any]]:
    """Return the complete lines of a record file; a kill may have truncated the last one."""
    try:
        raw = (session.records_directory / name).read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in raw.split(b"\n")[:-1]]


def stored_output(session: ChaosSession) -> str:
    """Return the agent's whole output from the stored messages that the session page shows."""
    parts: dict[str, str] = defaultdict(str)
    query = (
        "SELECT p.message_id, p.text FROM session_message_parts p JOIN session_messages m ON m.id = p.message_id"
        " WHERE m.session_id = ? ORDER BY p.number"
    )
    for part in session.deployment.rows(query, session.id.replace("-", "")):
        parts[str(part["message_id"])] += part["text"]
    messages = [row for row in session.rows("session_messages", "seq") if row["role"] == "agent"]
    return "".join(parts[str(row["id"])] for row in messages)


def answers_of(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the text before the first heading, then each answer with the id of its heading, in order."""
    first, *rest = HEADING.split(text)
    pairs = zip(rest[::2], rest[1::2], strict=True)
    return first, [(answer, f"<answer {answer}>\n{body}") for answer, body in pairs]


def events_of(session: ChaosSession) -> list[dict[str, Any]]:
    """Return the whole log, in order."""
    return [{**row, "payload": json.loads(row["payload"])} for row in session.rows("session_events", "seq")]
