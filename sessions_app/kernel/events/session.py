"""The session: its states, its policy, and what needs a user."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from pydantic import Field

from sessions_app.attention.rules.notices import AttentionKind
from sessions_app.kernel.events.base import Event, Inbox, with_reason
from sessions_app.kernel.rules.log_event import LogEvent
from sessions_app.kernel.rules.rebuild import SessionRebuild, text_value
from sessions_app.kernel.rules.states import SessionState, WorkState
from sessions_app.sessions.rules.situation_facts import Label, humanize_code

_END_LABELS: Final[Mapping[str, Label]] = {
    "COMPLETED": Label("The session was closed as completed", "good"),
    "CANCELLED": Label("The session was closed as cancelled", "off"),
    "FAILED": Label("The agent could not be started after several attempts. Press “Try again” to start it", "bad"),
}


class StateChanged(
    Event,
    name="session.state_changed",
    recorded_by="whatever changes the session's state; see [states.md](states.md)",
    audited=True,
):
    """The session has another state."""

    from_: str
    to: str
    reason: str
    error_code: str
    error_message: str

    def timeline_label(self) -> Label:
        """Return the error, the end, or the new state."""
        if self.to == SessionState.ERROR:
            return Label(with_reason("Something failed", self.error_message or humanize_code(self.error_code)), "bad")
        return _END_LABELS.get(self.to, Label(f"The session is {humanize_code(self.to).lower()} now"))

    def log_level(self) -> int:
        """Return WARNING for a session that was given up."""
        if self.to == SessionState.FAILED:
            return logging.WARNING
        return logging.INFO

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """Set the session's state and error."""
        if text_value(line.payload, "to") in set(SessionState):
            rows.state = line.payload["to"]
            rows.error_code = text_value(line.payload, "error_code")[:64]
            rows.error_message = text_value(line.payload, "error_message")


class WorkStateChanged(
    Event,
    name="session.work_state_changed",
    recorded_by="ingest, at the start and end of a turn",
    raises=(AttentionKind.IDLE, AttentionKind.CUT_SHORT),
):
    """The agent works, or is at rest."""

    from_: str
    to: str

    def update_inbox(self, inbox: Inbox) -> None:
        """Resolve what asks for a review when the agent works again; ask for one when it becomes idle."""
        if self.to == WorkState.WORKING:
            inbox.work_begins()
        elif self.from_ == WorkState.WORKING and self.to == WorkState.IDLE:
            inbox.work_ends()

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """Set the work state."""
        if text_value(line.payload, "to") in set(WorkState):
            rows.work_state = line.payload["to"]


class StatusDerived(
    Event,
    name="session.status_derived",
    recorded_by="the change that causes it, right after it",
):
    """The derived status has changed."""

    from_: str
    status: str = Field(description="the [derived status](states.md#derived-status)")

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """Set the status that was last recorded."""
        rows.told_status = text_value(line.payload, "status")[:20]


class PolicyChanged(
    Event,
    name="session.policy_changed",
    recorded_by="a user who sets or clears the session's own policy; the payload is what applies now",
):
    """Another recovery policy applies."""

    policy: str
    source: str = Field(description="`session`, `team` or `deployment`")
    continues: bool


class AttentionChanged(
    Event,
    name="session.attention",
    recorded_by="the change that [needs a user](operate/inbox.md#items-that-need-attention), or that ends the need",
    audited=True,
):
    """An attention item was raised or resolved."""

    item_id: str
    kind: str
    key: str
    state: str = Field(description="`raised` or `resolved`")
    resolution: str | None = Field(default=None, description="only of a resolved item")
