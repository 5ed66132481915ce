"""Suspensions of a session: their beginning, a continuation that is cancelled, and their end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from pydantic import Field

from executors_app.agents import CREDIT_EXHAUSTED
from sessions_app.attention.rules import notices
from sessions_app.attention.rules.notices import AttentionKind
from sessions_app.kernel.events.base import Event, Inbox
from sessions_app.sessions.rules.situation_facts import Label
from sessions_app.suspensions.rules.suspension import HEADLINES, Continuation, SuspensionEnd, headline, is_outage

_END_LABELS: Final[Mapping[str, Label]] = {
    SuspensionEnd.RESET: Label("The time of the suspension is over", "busy"),
    SuspensionEnd.USER: Label("A user resumed the session before its suspension ended", "busy"),
    SuspensionEnd.REPEATED: Label("The agent reported a limit or an outage again", "ask"),
    SuspensionEnd.OBSOLETE: Label("The session is no longer suspended", "off"),
}


_LEFT_TO_OTHERS: Final = frozenset({Continuation.NOTHING, Continuation.AGENT})
"""What Kandev does not continue: if nobody else has, a review is asked for."""


class Suspended(
    Event,
    name="session.suspended",
    recorded_by="ingest, when a usage limit ends a turn, or an outage of the provider that outlasts the retries",
    audited=True,
    timeline=Label("The session is suspended", "ask"),
    raises=(AttentionKind.SUSPENDED,),
):
    """A session is suspended."""

    suspension_id: str
    run_id: str
    reason: str = Field(description=", ".join(f"`{reason}`" for reason in HEADLINES))
    until: str | None = Field(description="when the limit ends; null if the agent does not say so")
    zone: str = Field(description="the time zone that the agent named; empty if it named none")
    message: str = Field(description="the agent’s own message, at most 1,000 characters")
    tries_at: str | None = Field(default=None, description="when the turn is tried again during an outage")

    def timeline_label(self) -> Label:
        """Say why."""
        return Label(f"{headline(self.reason)}, so the session is suspended", "ask")

    def update_inbox(self, inbox: Inbox) -> None:
        """Say until when, and why."""
        why = headline(self.reason)
        if is_outage(self.reason):
            notice = notices.outage_notice(self.suspension_id, why, _in_words(self.tries_at), self.message)
        elif self.reason == CREDIT_EXHAUSTED and not self.until:
            notice = notices.credit_notice(self.suspension_id, why, self.message)
        else:
            notice = notices.suspended_notice(self.suspension_id, _in_words(self.until), self.zone, self.message)
        inbox.raise_item(notice)


def _in_words(moment: str | None) -> str:
    """Return a moment in words; empty if it is unknown."""
    if moment is None:
        return ""
    return f"{datetime.fromisoformat(moment):%Y-%m-%d %H:%M} UTC"


class ContinuationWithdrawn(
    Event,
    name="session.suspension.withdrawn",
    recorded_by="a user who cancels the turn or stops the session while the limit lasts",
    audited=True,
    timeline=Label("The turn is not continued when the suspension ends", "off"),
):
    """The turn that a limit has ended is not continued at its end."""

    suspension_id: str
    by: str | None = None


class SuspensionEnded(
    Event,
    name="session.suspension.ended",
    recorded_by="the job *suspensions* at the end of the limit; a user who does not wait for it; ingest, when the "
    "agent completes a turn or reports a limit again",
    audited=True,
    timeline=Label("The session is no longer suspended", "busy"),
    raises=(AttentionKind.IDLE, AttentionKind.CUT_SHORT),
):
    """A session is no longer suspended."""

    suspension_id: str
    reason: str = Field(description=", ".join(f"`{end}`" for end in SuspensionEnd))
    continuation: str = Field(description=", ".join(f"`{kind}`" for kind in Continuation))
    by: str | None = None

    def timeline_label(self) -> Label:
        """Say why it has ended."""
        assert self.timeline is not None  # noqa: S101 - declared above
        return _END_LABELS.get(self.reason, self.timeline)

    def update_inbox(self, inbox: Inbox) -> None:
        """Settle the item about it; ask for a review of a turn that nothing continues."""
        inbox.resolve(self.reason, key=notices.suspended_key(self.suspension_id))
        if self.reason == SuspensionEnd.RESET and self.continuation in _LEFT_TO_OTHERS:
            inbox.work_ends()
