"""Build the history: the text that gives a new conversation the content of the old one (strategy ``history``).

Entries are taken from the newest back until a budget is used up. Each is cut at its own limit and freed of secrets.
What is left out is counted, because the prompt and the receipt report it. All limits are in characters.

A history takes seconds of processor time if an agent wants it to, so it is built in a limited process
(``sessions_app.rendering``), stored, and read from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sessions_app.kernel.rules.wording import plural
from sessions_app.redaction.redactor import redact_part

BUDGET_CHARS: Final = 60_000
MESSAGE_CHARS: Final = 2000
TOOL_CHARS: Final = 500
"""Limit of a tool call's arguments, and of its result."""
SCANNED_CHARS: Final = 8000
"""How much of a text is searched for secrets. More than is sent, so that the cut does not hide half of a secret."""
SCAN_BUDGET: Final = 500_000
"""How much of all texts is searched: at 11 µs for each character, less than 6 s of processor time."""
RULES_VERSION: Final = 4
"""To be raised when a change of this module or of ``sessions_app.redaction`` changes what stored histories contain."""
_NAME_CHARS: Final = 120
_LABELS: Final = {"user": "USER", "agent": "ASSISTANT"}
BYTES_PER_TOKEN: Final = 4
"""The basis of the estimated tokens: no tokenizer is used, because each model has its own."""
_CUT_MARK: Final = "… [cut]"


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One message or tool call of the old conversation.

    ``role`` is ``user``, ``agent`` or ``tool``; entries of other roles are left out.
    """

    role: str
    text: str
    """For a tool: its result, empty if there is none."""
    name: str = ""
    """Name of a tool."""
    arguments: str = ""
    """Arguments of a tool call, as JSON."""
    unfinished: bool = False
    """The tool call was interrupted or cancelled."""


@dataclass(frozen=True, slots=True)
class Injection:
    """The history as text for the next prompt; empty if there is no history."""

    text: str
    estimated_tokens: int
    told: int = 0
    """Number of entries in the text."""
    cut: int = 0
    """Number of entries left out, all older than those in the text."""
    shortened: int = 0
    """Number of entries that were cut."""
    redacted: int = 0
    """Number of secrets removed."""

    def facts(self) -> dict[str, int | None]:
        """Return the counts that a status shows before the prompt, and a receipt afterwards."""
        return {
            "estimated_tokens": self.estimated_tokens,
            "entries_told": self.told,
            "entries_cut": self.cut,
            "entries_shortened": self.shortened,
            "secrets_redacted": self.redacted,
        }


UNKNOWN_FACTS: Final[Mapping[str, int | None]] = dict.fromkeys(Injection("", 0).facts())
"""``Injection.facts`` of a history that is not built yet."""


@dataclass(frozen=True, slots=True)
class _EntryText:
    text: str
    shortened: bool = False
    redacted: int = 0


def tool_entry(payload: Mapping[str, Any]) -> HistoryEntry:
    """Return the entry of a tool message: its arguments, and its result with content."""
    given = payload.get("raw_input")
    return HistoryEntry(
        role="tool",
        name=str(payload.get("title") or payload.get("tool_kind") or payload.get("tool_call_id") or "tool"),
        arguments="" if given in (None, "", {}, []) else _as_json(given),
        text=_result(payload),
        unfinished=payload.get("status") in ("interrupted", "cancelled", "unfinished"),
    )


def build_injection(
    newest_first: Iterable[HistoryEntry], total: int, budget_chars: int = BUDGET_CHARS, secrets: Iterable[str] = ()
) -> Injection:
    """Build the history from the newest entries that fit into ``budget_chars``, oldest first.

    ``total`` is the number of all entries. ``newest_first`` is read only as far as needed. ``secrets`` are values to
    redact wherever they occur.
    """
    known = frozenset(secrets)
    entry_texts: list[_EntryText] = []
    silent, room = 0, budget_chars + 1  # the last line has no line break
    unscanned = SCAN_BUDGET
    for entry in newest_first:
        unscanned -= _scanned_chars(entry)
        if unscanned < 0:
            break
        one = _entry_lines(entry, known)
        if one is None:
            silent += 1
            continue
        if len(one.text) + 1 > room:
            break
        room -= len(one.text) + 1
        entry_texts.append(one)
    text = "\n".join(one.text for one in reversed(entry_texts))
    return Injection(
        text,
        estimated_tokens=-(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN),
        told=len(entry_texts),
        cut=max(0, total - len(entry_texts) - silent),
        shortened=sum(one.shortened for one in entry_texts),
        redacted=sum(one.redacted for one in entry_texts),
    )


def prepend_history(injection: Injection, request: str) -> str:
    """Return the whole prompt: history and request; the request alone if there is no history."""
    if not injection.text and not injection.cut:
        return request
    left_out = []
    if injection.cut:
        entries = plural(injection.cut, "1 older entry is left out.", "{} older entries are left out.")
        left_out.append(f"({entries})\n")
    if injection.redacted:
        left_out.append(f"({plural(injection.redacted, '1 secret is left out.', '{} secrets are left out.')})\n")
    return (
        "RESUME CONTEXT FOR CONTINUING TASK\n\n"
        "=== EXECUTION HISTORY ===\n"
        f"{''.join(left_out)}{injection.text}\n\n"
        "=== CURRENT REQUEST ===\n"
        f"{request}\n\n"
        "=== INSTRUCTIONS ===\n"
        "You are continuing work on the above task. The history above comes from an earlier agent process, and "
        "the workspace contains its results.\n"
        "Do not repeat work that was already completed."
    )


def _scanned_chars(entry: HistoryEntry) -> int:
    return sum(min(len(text), SCANNED_CHARS) for text in (entry.text, entry.name, entry.arguments))


def _entry_lines(entry: HistoryEntry, secrets: frozenset[str]) -> _EntryText | None:
    """Return the lines of an entry; None if it is empty."""
    if entry.role == "tool":
        return _tool_lines(entry, secrets)
    if entry.role not in _LABELS or not entry.text.strip():
        return None
    message = _cut(entry.text, MESSAGE_CHARS, secrets)
    return _EntryText(f"[{_LABELS[entry.role]}]: {message.text}", message.shortened, message.redacted)


def _tool_lines(entry: HistoryEntry, secrets: frozenset[str]) -> _EntryText:
    name = _cut(" ".join(entry.name.split()), _NAME_CHARS, secrets)
    given = _cut(entry.arguments, TOOL_CHARS, secrets)
    result = _cut(entry.text, TOOL_CHARS, secrets)
    ending = result.text
    if not ending and entry.unfinished:
        ending = "(no result: it was interrupted)"
    elif not ending:
        ending = "(no result)"
    return _EntryText(
        f"[TOOL CALL: {name.text}] {given.text}".rstrip() + f"\n[TOOL RESULT: {name.text}] {ending}",
        any(one.shortened for one in (name, given, result)),
        sum(one.redacted for one in (name, given, result)),
    )


def _cut(text: str, limit: int, secrets: frozenset[str]) -> _EntryText:
    """Redact a text and cut it to ``limit`` characters.

    Later lines are indented, so that no text from the log can pass for one of our headings.
    """
    whole = text.strip()
    # The beginning of a message is read from the database, so what is stripped may hide that it is one.
    is_cut = len(text) > SCANNED_CHARS
    searched = whole[:SCANNED_CHARS]
    clean, redacted = redact_part(searched, 0, len(searched), secrets, cut_after=is_cut)
    shortened = len(clean) > limit or is_cut
    if shortened:
        clean = clean[:limit] + _CUT_MARK
    return _EntryText("\n  ".join(clean.splitlines()), shortened, redacted)


def _result(payload: Mapping[str, Any]) -> str:
    parts = payload.get("content")
    if isinstance(parts, list):
        texts = [_part(part) for part in parts if isinstance(part, dict)]
    else:
        texts = []
    if any(texts):
        return "\n".join(filter(None, texts))
    given = payload.get("raw_output")
    if isinstance(given, str):
        return given
    if given:
        return _as_json(given)
    return ""


def _part(part: Mapping[str, Any]) -> str:
    """Return the text of one content block of a result; for a changed file, its path and new text."""
    block = part.get("content")
    if not isinstance(block, dict):
        block = part
    if block.get("type") == "diff":
        changed = block.get("newText") or block.get("new_text") or ""
        return f"changed {block.get('path', '')}: {changed}"
    if isinstance(block.get("text"), str):
        return str(block["text"])
    return ""


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
