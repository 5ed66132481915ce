"""Reduce a batch of journal lines to what must be written: joined pieces of texts, and an agent's last reports.

Lines are prepared before their session is locked, so that other writers wait for the database only. Pieces of one text
that follow each other become one line. That is what reaches the log anyway: a batch writes one event for them. Lines
that do not simply continue at the cursor are split by ``CursorFilter`` first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import groupby, zip_longest
from typing import Any, Final

from executors_app.wire.agent_settings import (
    NAME_LIMIT,
    REASON_LIMIT,
    TITLE_LIMIT,
    Setting,
    clean_text,
    find_setting,
    parse_commands,
    parse_settings,
)
from executors_app.wire.line_format import UNREADABLE
from executors_app.wire.protocol import JournalKind
from sessions_app.agents.events import AgentCommandsReported, AgentSettingsReported, AgentTitleReported
from sessions_app.agents.models import APPLIED, KEPT, REFUSED, WAITING, agent_settings_of, record_refusal, settle_change
from sessions_app.models import AgentSettings, SessionTransaction

JournalLine = Mapping[str, Any]
TEXT_KINDS: Final = frozenset({JournalKind.MESSAGE_AGENT.value, JournalKind.MESSAGE_THOUGHT.value})

OUTPUT_KINDS: Final = TEXT_KINDS | {
    JournalKind.MESSAGE_SUB_AGENT.value,
    JournalKind.TOOL_CALL.value,
    JournalKind.TOOL_UPDATE.value,
    JournalKind.PLAN.value,
    JournalKind.USAGE.value,
}
"""Lines that only report output of the agent: no intent and no prompt becomes due because of them."""

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


class AgentSettingsUpdate:
    """An agent's reports of its settings, commands and title in one batch.

    ``write`` stores the last of each in the session's transaction. An agent may report its settings a thousand times in
    a second; one event and one row are written for a batch.
    """

    def __init__(self, transaction: SessionTransaction):
        self._transaction = transaction
        self._reports: dict[str, tuple[datetime, Callable[[], object]]] = {}
        """By column, the time of the last report and what records its event."""
        self._changed = False

    @cached_property
    def _row(self) -> AgentSettings:
        session = self._transaction.session
        return agent_settings_of(session) or AgentSettings(session=session)

    def report_settings(self, line: JournalLine) -> None:
        """Record all settings with their values. A choice follows its agent, unless the agent has just started."""
        if not self._is_newer("settings_at"):
            return
        before, self._row.settings = self._row.settings, parse_settings(line.get("settings"))
        reason = clean_text(line.get("reason"), NAME_LIMIT)
        if reason != "opened":
            self._follow(before)
        values = {each["id"]: each["value"] for each in self._row.settings}
        self._note(
            "settings", lambda: self._transaction.record_event(AgentSettingsReported(values=values, reason=reason))
        )

    def report_commands(self, line: JournalLine) -> None:
        """Record the commands that the agent offers."""
        if self._is_newer("commands_at"):
            self._row.commands = parse_commands(line.get("commands"))
            names = [each["name"] for each in self._row.commands]
            self._note("commands", lambda: self._transaction.record_event(AgentCommandsReported(commands=names)))

    def report_title(self, line: JournalLine) -> None:
        """Record the agent's title of the conversation."""
        if self._is_newer("title_at"):
            self._row.title = clean_text(line.get("title"), TITLE_LIMIT)
            title = self._row.title
            self._note("title", lambda: self._transaction.record_event(AgentTitleReported(title=title)))

    def settle(self, line: JournalLine) -> None:
        """Record the outcome of a change, or the refusal of a choice that a start applied again."""
        setting_id, change_id, code = (str(line.get(name) or "") for name in ("setting", "change_id", "code"))
        reason = clean_text(line.get("reason"), REASON_LIMIT)
        if settle_change(self._transaction, self._row, setting_id, change_id, code=code[:64], reason=reason):
            self._changed = True
        elif code and change_id.startswith(KEPT):
            self._refuse_kept(setting_id, change_id.removeprefix(KEPT), code[:64], reason)

    def write(self) -> None:
        """Write the row and the events; call it once, at the end of the batch."""
        for at, record in self._reports.values():
            self._transaction.at = at
            record()
        if self._reports or self._changed:
            self._row.save()

    def _follow(self, before: list[Setting]) -> None:
        """Update choices to values that the agent changed on its own, so that a restart does not undo them."""
        for setting in self._row.settings:
            choice, earlier = self._row.chosen.get(setting["id"], {}), find_setting(before, setting["id"])
            settled = choice.get("change", {}).get("state") in (APPLIED, REFUSED)
            moved = earlier is not None and earlier["value"] != setting["value"]
            if "value" in choice and settled and moved and setting["value"] is not None:
                self._row.choose(setting["id"], value=setting["value"])

    def _refuse_kept(self, setting_id: str, change_id: str, code: str, reason: str) -> None:
        """Show that a start could not apply an earlier choice again; the next start tries again."""
        change = self._row.change_of(setting_id)
        if change.get("id") != change_id or change["state"] == WAITING:
            return
        self._row.choose(setting_id, change={**change, "state": REFUSED, "code": code, "reason": reason})
        value = self._row.chosen[setting_id].get("value")
        record_refusal(self._transaction, setting_id, change_id, value, code=code, reason=reason)
        self._changed = True

    def _is_newer(self, column: str) -> bool:
        """Whether the line is newer than what the column's report is of; notes its time if so."""
        known, at = getattr(self._row, column), self._transaction.at
        if known is not None and known > at:
            return False
        setattr(self._row, column, at)
        return True

    def _note(self, column: str, record: Callable[[], object]) -> None:
        self._reports[column] = (self._transaction.at, record)
