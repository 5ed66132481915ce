"""The journal of agentctl: gaps, damaged lines and warnings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import Field

from sessions_app.kernel.events.base import Event, with_reason
from sessions_app.kernel.rules.wording import plural
from sessions_app.sessions.rules.situation_facts import Label, humanize_code

_GAP_SENTENCES: Final[Mapping[str, str]] = {
    "new_epoch": "the agent’s journal was started over",
    "lines_missing": "lines of the agent’s journal are missing",
    "database_restored": "the database was restored from an older copy",
    "record_incomplete": "the portable record was incomplete",
}


class JournalGap(
    Event,
    name="session.journal_gap",
    recorded_by="ingest; the first start with a restored database; an import",
    audited=True,
):
    """The log may lack some of what the agent reported."""

    reason: str = Field(description="`new_epoch`, `lines_missing`, `database_restored` or `record_incomplete`")
    since: str | None = Field(description="the last time at which the log was complete")
    lost_events: int | None = Field(
        default=None, description="for the last two reasons, how many events of this log are lost"
    )

    def timeline_label(self) -> Label:
        """Say why something may be missing."""
        reason = _GAP_SENTENCES.get(self.reason, humanize_code(self.reason))
        return Label(f"Some of the agent’s messages may be missing here: {reason}", "bad")


class JournalSkipped(Event, name="session.journal_skipped", recorded_by="ingest", audited=True):
    """Lines of a damaged journal were skipped."""

    reason: str = Field(description="`unreadable`, `out_of_order` or `unwritable`")
    count: int
    seq: int | None = Field(description="of the first skipped line")
    kind: str = Field(description="of the first skipped line")

    def timeline_label(self) -> Label:
        """Say how many lines were skipped."""
        lines = plural(self.count, "1 damaged line", f"{self.count or 'Some'} damaged lines")
        return Label(f"{lines} of the agent’s journal {plural(self.count, 'was', 'were')} skipped", "bad")


class WarningReported(
    Event,
    name="session.warning",
    recorded_by="ingest: a warning of agentctl about the workspace or the agent's process; once for each text, at "
    "most 100 in a session",
):
    """agentctl has reported a warning."""

    level: str = Field(description="`warning` or `error`")
    text: str

    def timeline_label(self) -> Label:
        """Return the warning."""
        return Label(with_reason("A warning of the session’s agentctl", self.text), "ask")
