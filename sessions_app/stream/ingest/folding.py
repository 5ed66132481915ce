"""Reduce a batch of journal lines to what must be written: those behind the cursor, with joined pieces of texts.

Lines are prepared before their session is locked, so that other writers wait for the database only. Pieces of one text
that follow each other become one line. That is what reaches the log anyway: a batch writes one event for them. Lines
that do not simply continue at the cursor are split by ``CursorFilter`` first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
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


@dataclass
class CursorFilter:
    """Splits journal lines by a cursor into new, known and unusable ones."""

    epoch: str
    seq: int
    new: list[JournalLine] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    """Gaps before new lines, where output may be lost: ``new_epoch`` or ``lines_missing``."""
    skipped: list[tuple[str, JournalLine]] = field(default_factory=list)
    """Reason and line: ``unreadable`` or ``out_of_order``."""

    def read(self, lines: Sequence[JournalLine]) -> CursorFilter:
        """Read a batch and move the cursor to its last good line; return self."""
        for line, following in zip_longest(lines, lines[1:]):
            if line["kind"] == UNREADABLE:
                self.skipped.append((UNREADABLE, line))
            elif self._is_known(line):
                # Before the first new line it is a repetition, as after a crash before the acknowledgement.
                if self.new:
                    self.skipped.append(("out_of_order", line))
            elif following is not None and self._is_out_of_order(line, following):
                self.skipped.append(("out_of_order", line))
            else:
                self._accept(line)
        return self

    def accept_all(self, lines: Sequence[JournalLine]) -> None:
        """Take lines that continue at the cursor without a gap."""
        self.new.extend(lines)
        self.epoch, self.seq = lines[-1]["epoch"], lines[-1]["seq"]

    def _is_known(self, line: JournalLine) -> bool:
        return bool(line["epoch"] == self.epoch and line["seq"] <= self.seq)

    def _is_out_of_order(self, line: JournalLine, following: JournalLine) -> bool:
        """Whether the following line continues at the cursor and this one does not come before it."""
        continues = following["kind"] != UNREADABLE and following["epoch"] == self.epoch and following["seq"] > self.seq
        return bool(continues and not (line["epoch"] == self.epoch and line["seq"] < following["seq"]))

    def _accept(self, line: JournalLine) -> None:
        if self.epoch and line["epoch"] != self.epoch:
            # Covers lines missing at its beginning; those of a first epoch are reported below.
            self.gaps.append("new_epoch")
        elif line["seq"] > self.seq + 1:
            self.gaps.append("lines_missing")
        self.epoch, self.seq = line["epoch"], line["seq"]
        self.new.append(line)
