"""Pieces of one text that follow each other become one line, before the session is locked.

So other writers wait for the database only. That is what reaches the log anyway: a batch writes one event for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from executors_app.wire.line_format import UNREADABLE
from sessions_app.stream.conversation import TEXT_KINDS, JournalLine

_TEXT_FIELDS: Final = frozenset({"seq", "epoch", "ts", "kind", "text", "agent_message_id"})
"""All fields of a piece of text; a line with others is checked alone when it is applied."""


@dataclass(frozen=True, slots=True)
class PreparedLines:
    """Lines of one journal, in order, and the same with joined texts."""

    lines: Sequence[JournalLine]
    folded: Sequence[JournalLine]
    is_gapless: bool
    """Whether all lines are readable, of one epoch, and numbered one by one."""

    @classmethod
    def of(cls, lines: Sequence[JournalLine]) -> PreparedLines:
        """Prepare lines; never raises, because a malformed line is left as it is."""
        is_gapless = _is_gapless(lines)
        return cls(lines, fold_texts(lines) if is_gapless else (), is_gapless)

    def continues(self, epoch: str, seq: int) -> bool:
        """Whether a reader at this cursor has none of the lines and misses none before them."""
        return self.is_gapless and self.lines[0]["seq"] == seq + 1 and epoch in ("", self.lines[0]["epoch"])


def _is_gapless(lines: Sequence[JournalLine]) -> bool:
    if not lines or lines[0]["kind"] == UNREADABLE:
        return False
    epoch, first = lines[0]["epoch"], lines[0]["seq"]
    return all(
        line["kind"] != UNREADABLE and line["seq"] == seq and line["epoch"] == epoch
        for seq, line in enumerate(lines, start=first)
    )


def fold_texts(lines: Iterable[JournalLine]) -> list[JournalLine]:
    """Join the texts of lines of one kind that follow each other; the joined line has the time of the first."""
    folded: list[JournalLine] = []
    for kind, group in groupby(lines, key=_kind_of_text):
        if kind is None:
            folded += group
            continue
        first, *others = group
        folded.append({**first, "text": "".join([first["text"], *(line["text"] for line in others)])})
    return folded


def _kind_of_text(line: JournalLine) -> str | None:
    """Return the kind of a line that is a piece of text; None for any other and for a malformed one."""
    kind: str = line["kind"]
    is_piece = kind in TEXT_KINDS and isinstance(line.get("text"), str) and line.keys() <= _TEXT_FIELDS
    if is_piece:
        return kind
    return None
