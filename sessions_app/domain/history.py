"""Telling a new conversation what was said in the old one (strategy ``history``).

Entries are taken from the newest back until the budget is full, each cut at its own limit; what is
left out is counted, because the receipt says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

BUDGET_CHARS: Final = 60_000
_LIMITS: Final = {"user": 2000, "agent": 2000, "tool_call": 500, "tool_result": 500}
_LABELS: Final = {"user": "USER", "agent": "ASSISTANT", "tool_call": "TOOL CALL", "tool_result": "TOOL RESULT"}
_CHARS_PER_TOKEN: Final = 4
_CUT_MARK: Final = "… [cut]"


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One thing said or done; ``role`` is user, agent, tool_call or tool_result, others are left out."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Injection:
    """The history as text; empty text: there is nothing to tell."""

    text: str
    estimated_tokens: int
    cut: int
    """Entries left out, all older than those told."""
    shortened: int = 0
    """Entries told in part."""


def inject(entries: Sequence[HistoryEntry], budget_chars: int = BUDGET_CHARS) -> Injection:
    """The newest entries that fit into ``budget_chars``, in their order."""
    told: list[str] = []
    shortened, room = 0, budget_chars + 1  # the last line has no line break
    known = [entry for entry in entries if entry.role in _LABELS and entry.text.strip()]
    for entry in reversed(known):
        line, was_cut = _line(entry)
        if len(line) + 1 > room:
            break
        room -= len(line) + 1
        told.append(line)
        shortened += was_cut
    text = "\n".join(reversed(told))
    return Injection(text, -(-len(text) // _CHARS_PER_TOKEN), len(known) - len(told), shortened)


def with_request(injection: Injection, request: str) -> str:
    """The whole prompt: what was said before, and the user's request; the request alone without a history."""
    if not injection.text:
        return request
    missing = f"({injection.cut} older entries are left out.)\n" if injection.cut else ""
    return (
        "RESUME CONTEXT FOR CONTINUING TASK\n\n"
        "=== EXECUTION HISTORY ===\n"
        "What was said and done in this session before, with another agent process:\n\n"
        f"{missing}{injection.text}\n\n"
        "=== CURRENT REQUEST ===\n"
        f"{request}\n\n"
        "=== INSTRUCTIONS ===\n"
        "You are continuing work on the above task. The workspace holds what was done so far. "
        "Do not repeat work that was already completed."
    )


def _line(entry: HistoryEntry) -> tuple[str, bool]:
    """Later lines are indented, so that nothing said can pass for one of our own headings."""
    limit, text = _LIMITS[entry.role], entry.text.strip()
    was_cut = len(text) > limit
    told = text[:limit] + _CUT_MARK if was_cut else text
    return f"[{_LABELS[entry.role]}]: " + "\n  ".join(told.splitlines()), was_cut
