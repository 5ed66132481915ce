"""Build the history of a conversation for a new agent, from rows as they are stored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sessions_app.confined.link import ClientLink
from sessions_app.prompts.rules.attachments import names_sentence
from sessions_app.recovery.rules.history import HistoryEntry, build_injection, tool_entry

StoredEntry = Sequence[str]
"""Role, the beginning of the text, and the payload as JSON; the JSON is empty if it is too long to include."""


def build_history(
    link: ClientLink, entries: Sequence[StoredEntry], total: int, secrets: Sequence[str]
) -> dict[str, Any]:
    """Return the fields of an ``Injection``. ``entries`` begin with the newest; ``total`` is the number of all."""
    injection = build_injection(map(_to_entry, entries), total, secrets=secrets)
    return asdict(injection)


def _to_entry(stored: StoredEntry) -> HistoryEntry:
    role, text, raw_payload = stored
    payload = _to_object(raw_payload)
    if role == "tool":
        if raw_payload:
            return tool_entry(payload)
        return HistoryEntry("tool", "(too long to include)", name="tool")
    if role == "user":
        # The user's files are only named, because a history is text.
        files = names_sentence(payload.get("attachments"))
        if files:
            text = f"{files} {text}"
    return HistoryEntry(role, text)


def _to_object(raw: str) -> Mapping[str, Any]:
    try:
        found = json.loads(raw or "{}")
    except (ValueError, RecursionError):
        return {}
    if isinstance(found, dict):
        return found
    return {}
