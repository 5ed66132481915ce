"""Telling a new conversation what was said in the old one (strategy ``history``).

Entries are taken from the newest back until the budget is full, each cut at its own limit and freed of
secrets; what is left out is counted, because the prompt and the receipt say it. All limits are characters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sessions_app.domain.sanitizing import redact

BUDGET_CHARS: Final = 60_000
MESSAGE_CHARS: Final = 2000
TOOL_CHARS: Final = 500
"""Of a tool call's arguments, and of its result."""
SCANNED_CHARS: Final = 8000
"""So much of a text is looked at: a secret must not be cut before it is known for one."""
_NAME_CHARS: Final = 120
_LABELS: Final = {"user": "USER", "agent": "ASSISTANT"}
_BYTES_PER_TOKEN: Final = 4
_CUT_MARK: Final = "… [cut]"


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One thing said or done; ``role`` is user, agent or tool, others are left out."""

    role: str
    text: str
    """Of a tool: its result; empty where there is none."""
    name: str = ""
    """Of a tool."""
    arguments: str = ""
    """Of a tool call, as JSON."""
    unfinished: bool = False
    """A tool call that was interrupted or cancelled."""


@dataclass(frozen=True, slots=True)
class Injection:
    """The history as text; empty text: there is nothing to tell."""

    text: str
    estimated_tokens: int
    told: int = 0
    """Entries that are told."""
    cut: int = 0
    """Entries left out, all older than those told."""
    shortened: int = 0
    """Entries told in part."""
    redacted: int = 0
    """Secrets left out."""

    def facts(self) -> dict[str, int]:
        """What a receipt says of it, and a status before it is told."""
        return {
            "estimated_tokens": self.estimated_tokens,
            "entries_told": self.told,
            "entries_cut": self.cut,
            "entries_shortened": self.shortened,
            "secrets_redacted": self.redacted,
        }


@dataclass(frozen=True, slots=True)
class _EntryText:
    text: str
    shortened: bool = False
    redacted: int = 0


def tool_entry(payload: Mapping[str, Any]) -> HistoryEntry:
    """The entry of a tool message of the log: its arguments, and its result with content."""
    given = payload.get("raw_input")
    return HistoryEntry(
        role="tool",
        name=str(payload.get("title") or payload.get("tool_kind") or payload.get("tool_call_id") or "tool"),
        arguments="" if given in (None, "", {}, []) else _as_json(given),
        text=_result(payload),
        unfinished=payload.get("status") in ("interrupted", "cancelled"),
    )


def build_injection(
    newest_first: Iterable[HistoryEntry], total: int, budget_chars: int = BUDGET_CHARS, secrets: Iterable[str] = ()
) -> Injection:
    """The newest entries that fit into ``budget_chars``, in their order.

    ``total`` is how many there are; no more of ``newest_first`` is read than is needed. ``secrets`` are known by value.
    """
    known = frozenset(secrets)
    told: list[_EntryText] = []
    silent, room = 0, budget_chars + 1  # the last line has no line break
    for entry in newest_first:
        one = _entry_lines(entry, known)
        if one is None:
            silent += 1
            continue
        if len(one.text) + 1 > room:
            break
        room -= len(one.text) + 1
        told.append(one)
    text = "\n".join(one.text for one in reversed(told))
    return Injection(
        text,
        estimated_tokens=-(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN),
        told=len(told),
        cut=max(0, total - len(told) - silent),
        shortened=sum(one.shortened for one in told),
        redacted=sum(one.redacted for one in told),
    )


def prepend_history(injection: Injection, request: str) -> str:
    """The whole prompt: what was said before, and the user's request; the request alone without a history."""
    if not injection.text:
        return request
    left_out = [f"({injection.cut} older entries are left out.)\n"] if injection.cut else []
    left_out += [f"({injection.redacted} secrets are left out.)\n"] if injection.redacted else []
    return (
        "RESUME CONTEXT FOR CONTINUING TASK\n\n"
        "=== EXECUTION HISTORY ===\n"
        f"{''.join(left_out)}{injection.text}\n\n"
        "=== CURRENT REQUEST ===\n"
        f"{request}\n\n"
        "=== INSTRUCTIONS ===\n"
        "You are continuing work on the above task. What is told was said and done with another agent process, and "
        "the workspace holds what came of it.\n"
        "Do not repeat work that was already completed."
    )


def _entry_lines(entry: HistoryEntry, secrets: frozenset[str]) -> _EntryText | None:
    """The lines of an entry; None where it says nothing."""
    if entry.role == "tool":
        return _tool_lines(entry, secrets)
    if entry.role not in _LABELS or not entry.text.strip():
        return None
    said = _cut(entry.text, MESSAGE_CHARS, secrets)
    return _EntryText(f"[{_LABELS[entry.role]}]: {said.text}", said.shortened, said.redacted)


def _tool_lines(entry: HistoryEntry, secrets: frozenset[str]) -> _EntryText:
    name = _cut(" ".join(entry.name.split()), _NAME_CHARS, secrets)
    given = _cut(entry.arguments, TOOL_CHARS, secrets)
    result = _cut(entry.text, TOOL_CHARS, secrets)
    ending = result.text or ("(no result: it was interrupted)" if entry.unfinished else "(no result)")
    return _EntryText(
        f"[TOOL CALL: {name.text}] {given.text}".rstrip() + f"\n[TOOL RESULT: {name.text}] {ending}",
        any(one.shortened for one in (name, given, result)),
        sum(one.redacted for one in (name, given, result)),
    )


def _cut(text: str, limit: int, secrets: frozenset[str]) -> _EntryText:
    """At most ``limit`` characters; later lines are indented, so that nothing said can pass for a heading of ours."""
    whole = text.strip()
    clean, redacted = redact(whole[:SCANNED_CHARS], secrets)
    shortened = len(clean) > limit or len(whole) > SCANNED_CHARS
    told = clean[:limit] + _CUT_MARK if shortened else clean
    return _EntryText("\n  ".join(told.splitlines()), shortened, redacted)


def _result(payload: Mapping[str, Any]) -> str:
    parts = payload.get("content")
    texts = [_part(part) for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    if any(texts):
        return "\n".join(filter(None, texts))
    given = payload.get("raw_output")
    return given if isinstance(given, str) else "" if given in (None, {}, []) else _as_json(given)


def _part(part: Mapping[str, Any]) -> str:
    """The text of one content block of a result; of a change to a file, the file and its new text."""
    inner = part.get("content")
    block = inner if isinstance(inner, dict) else part
    if block.get("type") == "diff":
        changed = block.get("newText") or block.get("new_text") or ""
        return f"changed {block.get('path', '')}: {changed}"
    return str(block["text"]) if isinstance(block.get("text"), str) else ""


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
