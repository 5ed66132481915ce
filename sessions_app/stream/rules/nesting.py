"""Which tool calls of a conversation are the steps of another one: those that its sub-agent makes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sessions_app.stream.rules.tool_calls import key_of_tool

MAX_DEPTH: Final = 4
"""Steps within steps that are shown; those of deeper ones stand beside them. An agent decides how deep they are."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What has to be known of a message: its id, and of a tool call its key and that of the call that started it."""

    id: uuid.UUID
    is_prompt: bool = False
    key: str = ""
    parent_key: str = ""


def parent_key(payload: Mapping[str, Any]) -> str:
    """Return the key of the tool call whose sub-agent makes this one; empty if its agent names none."""
    named = payload.get("parent_tool_call_id")
    if not named:
        return ""
    return key_of_tool({"tool_call_id": named, "sub_agent": payload.get("sub_agent")})


def find_parents(entries: Sequence[Entry]) -> dict[uuid.UUID, uuid.UUID]:
    """Return the call that each step belongs to, by the id of the step; ``entries`` are in their order.

    An id names a call within a turn, so only the newest earlier one since the last prompt counts. A step whose call is
    not among the entries has no parent.
    """
    calls: dict[str, uuid.UUID] = {}
    parents: dict[uuid.UUID, uuid.UUID] = {}
    depths: dict[uuid.UUID, int] = {}
    for entry in entries:
        if entry.is_prompt:
            calls.clear()
        parent = calls.get(entry.parent_key) if entry.parent_key else None
        if parent is not None and depths.get(parent, 0) >= MAX_DEPTH:
            parent = parents[parent]
        if parent is not None:
            parents[entry.id] = parent
            depths[entry.id] = depths.get(parent, 0) + 1
        if entry.key:
            calls[entry.key] = entry.id
    return parents
