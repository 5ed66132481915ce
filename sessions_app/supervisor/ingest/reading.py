"""Which lines of a batch are new, where one is missing, and what is passed over: a pure function.

What is behind the cursor is known already. A line that leads to where the next one is not was never
agentctl's: it is passed over, so that it cannot move the cursor beyond what is still to come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from executors_app.agentctl.journal_files import UNREADABLE

Line = Mapping[str, Any]


@dataclass
class Reading:
    """A cursor, and what the lines behind it came to."""

    epoch: str
    seq: int
    new: list[Line] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    """``new_epoch`` or ``lines_missing``: something may be lost before a line (rule 20)."""
    skipped: list[tuple[str, Line]] = field(default_factory=list)
    """Reason and line: ``unreadable`` or ``out_of_order``."""

    def take(self, lines: Sequence[Line]) -> Reading:
        """Read a batch; the cursor is then behind its last good line."""
        for line, following in zip_longest(lines, lines[1:]):
            if line["kind"] == UNREADABLE:
                self.skipped.append((UNREADABLE, line))
            elif self._is_known(line):
                if self.new:
                    self.skipped.append(("out_of_order", line))
            elif following is not None and self._strays(line, following):
                self.skipped.append(("out_of_order", line))
            else:
                self._take(line)
        return self

    def _is_known(self, line: Line) -> bool:
        return bool(line["epoch"] == self.epoch and line["seq"] <= self.seq)

    def _strays(self, line: Line, following: Line) -> bool:
        """The next line is new, and yet not behind this one."""
        goes_on = following["kind"] != UNREADABLE and following["epoch"] == self.epoch and following["seq"] > self.seq
        return bool(goes_on and not (line["epoch"] == self.epoch and line["seq"] < following["seq"]))

    def _take(self, line: Line) -> None:
        if self.epoch and line["epoch"] != self.epoch:
            self.gaps.append("new_epoch")  # what it hides is said with that; a first epoch that begins late has a hole
        elif line["seq"] > self.seq + 1:
            self.gaps.append("lines_missing")
        self.epoch, self.seq = line["epoch"], line["seq"]
        self.new.append(line)
