"""The differences of two texts, line by line, with everything invisible written out.

Comparing takes quadratic time for some texts, so this runs in a limited process only.
"""

from __future__ import annotations

import difflib
from typing import Any, Final

from sessions_app.kernel.rules.wording import plural
from sessions_app.redaction.visible_text import make_visible

CONTEXT: Final = 3
"""Unchanged lines that are shown around a change."""
MAX_COMPARISON_SIZE: Final = 250_000
"""Maximum product of old and new lines for a comparison line by line, which can take quadratic time."""
LINE_LIMIT: Final = 1_000
"""Maximum number of characters that are shown of a line."""
MAX_SHOWN_LINES: Final = 2_000
"""Maximum number of lines that are shown of one part."""


def compare_texts(before: str, after: str) -> dict[str, Any]:
    """Return ``{lines, is_cut}``: lines with ``+``, ``-`` or a blank before them, and ``…`` for omitted equal ones."""
    return shown_lines(_diff_lines(_split_lines(before), _split_lines(after)))


def shown_lines(lines: list[str], limit: int = MAX_SHOWN_LINES) -> dict[str, Any]:
    """Return the first of the lines as they are shown, and whether something is left out."""
    is_cut = len(lines) > limit or any(len(line) > LINE_LIMIT for line in lines)
    return {"lines": [_escape_invisible(line) for line in lines[:limit]], "is_cut": is_cut}


def _split_lines(text: str) -> list[str]:
    if text:
        return text.split("\n")
    return []


def _diff_lines(before: list[str], after: list[str]) -> list[str]:
    begin, end = _common_prefix_and_suffix(before, after)
    old, new = before[begin : len(before) - end], after[begin : len(after) - end]
    if len(old) * len(new) > MAX_COMPARISON_SIZE:
        return [f"-{line}" for line in old] + [f"+{line}" for line in new]
    first, rest = max(begin - CONTEXT, 0), max(end - CONTEXT, 0)
    old, new = before[first : len(before) - rest], after[first : len(after) - rest]
    diff = list(difflib.unified_diff(old, new, n=CONTEXT, lineterm=""))
    without_head = diff[3:]  # the two file names and the first position
    return ["…" if line.startswith("@@") else line for line in without_head]


def _common_prefix_and_suffix(before: list[str], after: list[str]) -> tuple[int, int]:
    """Return how many lines are equal at the beginning and at the end, which usually leaves little to compare."""
    most, begin, end = min(len(before), len(after)), 0, 0
    while begin < most and before[begin] == after[begin]:
        begin += 1
    while end < most - begin and before[-1 - end] == after[-1 - end]:
        end += 1
    return begin, end


def _escape_invisible(line: str) -> str:
    """Return the line with invisible characters, and those that change the text direction, written out."""
    if len(line) > LINE_LIMIT:
        more = plural(len(line) - LINE_LIMIT, "1 more character", "{} more characters")
        line = f"{line[:LINE_LIMIT]}… ({more})"
    return "".join(map(_escape_character, line))


def _escape_character(character: str) -> str:
    if character.isprintable() or character == "\t":
        return character
    shown = make_visible(character)
    if shown not in (character, "\n"):
        return shown
    return f"⟦{ord(character):X}⟧"
