"""The difference between what was confirmed of a workflow and what it is now, for people to read.

Both sides were written by members, so the time is bounded whatever they hold, and no character hides another.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final

from sessions_app.domain.plain_text import visible
from sessions_app.services.workflow_confirmation import Parts, name_of

CONTEXT: Final = 3
"""Lines around a change."""
COMPARED: Final = 250_000
"""Lines before times lines after, up to which they are compared line by line: that is quadratic at worst."""
LINE_LIMIT: Final = 1_000
"""Characters of a line."""
SHOWN_LINES: Final = 2_000
"""Of one part."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What has become of one part. ``lines`` begin with ``+``, ``-`` or a blank; ``…`` stands for what is the same."""

    part: str
    name: str
    lines: tuple[str, ...]
    is_cut: bool = False
    """There is more than is shown."""

    @property
    def text(self) -> str:
        """The lines as one text."""
        return "\n".join(self.lines)


def differences(before: Parts, after: Parts) -> list[Difference]:
    """Every part that is not the same, in the order of ``after``, then what is gone."""
    names = [*after, *(name for name in before if name not in after)]
    return [
        _of(name, before.get(name, ""), after.get(name, "")) for name in names if before.get(name) != after.get(name)
    ]


def _of(part: str, before: str, after: str) -> Difference:
    lines = _compared(_lines(before), _lines(after))
    shown = tuple(_shown(line) for line in lines[:SHOWN_LINES])
    is_cut = len(lines) > SHOWN_LINES or any(len(line) > LINE_LIMIT for line in lines)
    return Difference(part, name_of(part), shown, is_cut)


def _lines(text: str) -> list[str]:
    return text.split("\n") if text else []


def _compared(before: list[str], after: list[str]) -> list[str]:
    begin, end = _same_around(before, after)
    old, new = before[begin : len(before) - end], after[begin : len(after) - end]
    if len(old) * len(new) > COMPARED:
        return [*(f"-{line}" for line in old), *(f"+{line}" for line in new)]
    first, rest = max(begin - CONTEXT, 0), max(end - CONTEXT, 0)
    around = before[first : len(before) - rest], after[first : len(after) - rest]
    told = list(difflib.unified_diff(*around, n=CONTEXT, lineterm=""))[3:]  # two names, and the first place
    return ["…" if line.startswith("@@") else line for line in told]


def _same_around(before: list[str], after: list[str]) -> tuple[int, int]:
    """How many lines are the same at the beginning and at the end: all that is common, where little was changed."""
    most, begin, end = min(len(before), len(after)), 0, 0
    while begin < most and before[begin] == after[begin]:
        begin += 1
    while end < most - begin and before[-1 - end] == after[-1 - end]:
        end += 1
    return begin, end


def _shown(line: str) -> str:
    """Characters that show nothing, or turn the direction of others, are written out."""
    cut = line if len(line) <= LINE_LIMIT else f"{line[:LINE_LIMIT]}… ({len(line) - LINE_LIMIT} more characters)"
    return "".join(one if one.isprintable() or one == "\t" else _named(one) for one in cut)


def _named(character: str) -> str:
    shown = visible(character)
    return shown if shown not in (character, "\n") else f"⟦{ord(character):X}⟧"
