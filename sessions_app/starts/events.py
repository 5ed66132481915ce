"""The execution: agentctl, the agent's process, restarts and their receipts."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from typing import Final

from pydantic import Field

from executors_app.wire.executions import ExecutorStatus
from sessions_app.attention.rules import notices
from sessions_app.attention.rules.notices import AttentionKind
from sessions_app.kernel.events.base import Event, Inbox, with_reason
from sessions_app.kernel.rules.log_event import LogEvent
from sessions_app.kernel.rules.rebuild import ReceiptRow, SessionRebuild, text_value
from sessions_app.kernel.rules.wording import describe_exit
from sessions_app.recovery.rules.verification import ReceiptKind, Verified
from sessions_app.sessions.rules.situation_facts import Label, humanize_code

CHOSEN_FRESH_START: Final = "fresh_start"
"""Receipt reason of a fresh start that a user chose."""


class AgentctlEvent(Event, audited=True):
    """A change of the execution's status."""

    executor_status: str
    error_message: str

    def may_change_status(self) -> bool:
        """Return True: an agent that is certainly gone interrupts a turn."""
        return True


class AgentctlStarting(AgentctlEvent, name="session.agentctl_starting", recorded_by="a start"):
    """agentctl is being started."""


class AgentctlReady(
    AgentctlEvent, name="session.agentctl_ready", recorded_by="a start, or the sweep that found agentctl"
):
    """agentctl answers."""

    reason: str | None = Field(default=None, description="after a recovery, `reattached`")

    def may_change_status(self) -> bool:
        """Return False after a recovery, which confirms a status.

        In a sweep of thousands of sessions, deriving it again would read each newest run.
        """
        return self.reason != ReceiptKind.REATTACHED

    def timeline_label(self) -> Label:
        """Say whether the workspace was opened, or had stayed open."""
        if self.reason == ReceiptKind.REATTACHED:
            return Label("The workspace had stayed open; reconnected", "calm")
        return Label("The workspace is open: files, git, terminal", "calm")


class AgentctlError(AgentctlEvent, name="session.agentctl_error", recorded_by="a failed start, or the sweep"):
    """agentctl could not be started, or does not answer."""

    def timeline_label(self) -> Label:
        """Return the error."""
        return Label(with_reason("The workspace failed", self.error_message), "bad")


class AgentctlStopped(
    AgentctlEvent,
    name="session.agentctl_stopped",
    recorded_by="a stop, or the sweep",
    timeline=Label("The workspace was stopped; the work in it is kept", "off"),
):
    """agentctl has ended."""


AGENTCTL_EVENTS: Final[Mapping[str, type[AgentctlEvent]]] = {
    ExecutorStatus.STARTING: AgentctlStarting,
    ExecutorStatus.READY: AgentctlReady,
    ExecutorStatus.ERROR: AgentctlError,
    ExecutorStatus.STOPPED: AgentctlStopped,
}
"""The event of each status that an execution moves to."""


class AgentctlAbandoned(
    Event,
    name="session.agentctl_abandoned",
    recorded_by="ingest: agentctl has exited after seven days without contact",
    audited=True,
    timeline=Label("No contact for seven days, so the workspace was closed", "off"),
):
    """agentctl has ended on its own."""


class StartWaits(Event, name="session.start_waits", recorded_by="the sweep that would have started it", audited=True):
    """The session has a place in the start queue."""

    reason: str = Field(
        description="`turn` (the maximum number of starts is already under way) or `capacity` (its executor is full)"
    )
    before: int = Field(description="how many starts are ahead of it")

    def timeline_label(self) -> Label:
        """Say what it waits for."""
        return Label(with_reason("Waiting to start", humanize_code(self.reason)), "ask")


class RestartOrdered(
    Event,
    name="session.restart_ordered",
    recorded_by="the sweep; no user requested this start",
    audited=True,
    timeline=Label("Kandev starts the agent again", "busy"),
):
    """A sweep starts the session again."""

    cause: str = Field(description="the [rule](recovery.md#what-a-sweep-decides)")
    launch_id: str
    mode: str
    attempt: int
    owner_id: int | None = Field(description="the user for whom it starts")


class Asleep(
    Event,
    name="session.asleep",
    recorded_by="the supervisor; it then ends the execution, and the next prompt wakes the session",
    audited=True,
    timeline=Label("The agent was idle, so it was put to sleep. The next prompt wakes it", "off"),
):
    """The session sleeps."""

    reason: str = Field(description="`idle`")
    idle_since: str
    after: float = Field(description="`KANDEV_IDLE_SLEEP`, in seconds")


class Drained(Event, name="session.drained", recorded_by="the supervisor of a host that drains", audited=True):
    """The session is stopped for the maintenance of its host."""

    host: str = Field(description="the name of the host")

    def timeline_label(self) -> Label:
        """Name the host."""
        return Label(f"Stopped for the maintenance of {self.host}. It is resumed afterwards", "off")


class HostLost(Event, name="session.host_lost", recorded_by="the declaration that its host is lost", audited=True):
    """A person has declared the session's host lost."""

    host: str = Field(description="the name of the host")
    is_work_here: bool = Field(
        description="whether the branch or a snapshot was found on the machine that ended the execution"
    )

    def timeline_label(self) -> Label:
        """Name the host, and say where the work is."""
        if self.is_work_here:
            return Label(f"The host {self.host} was declared lost. The session can go on elsewhere", "bad")
        return Label(f"The host {self.host} was declared lost, with the work of this session", "bad")


class LostHostReturned(
    Event, name="session.lost_host_returned", recorded_by="the host, once it has ended what it still ran", audited=True
):
    """A host that was declared lost is back, and has ended its execution of the session."""

    host: str = Field(description="the name of the host")
    ref: str = Field(description="the ref under which the last saved work there is kept; empty if there is none")

    def timeline_label(self) -> Label:
        """Say where the work is."""
        text = f"The host {self.host} is back and has ended what it still ran of this session"
        if self.ref:
            text += f". Its last saved work is kept as {self.ref}"
        return Label(text, "off")


class AgentExited(Event, name="session.agent_exited", recorded_by="ingest", audited=True):
    """The agent's process has ended."""

    exit_code: int | None
    expected: bool = Field(description="whether its exit was requested")

    def timeline_label(self) -> Label:
        """Say whether it was requested, and if not, how it ended."""
        if self.expected:
            return Label("The agent’s process ended as requested", "off")
        words = "The agent’s process ended unexpectedly"
        if self.exit_code is not None:
            words += f" ({describe_exit(self.exit_code)})"
        return Label(words, "bad")


class TranscriptClosed(Event, name="session.transcript", recorded_by="a close that requested it"):
    """What became of the agent's own transcript when the session was closed."""

    deleted: bool = Field(description="whether the agent reports that it deleted its own transcript")
    confirmed: bool = Field(description="whether it listed the conversation before and no longer does")
    reason: str = Field(description="why it was not deleted")

    def timeline_label(self) -> Label:
        """Say what was deleted, and how that is known: an agent's report alone proves nothing."""
        if not self.deleted:
            return Label(with_reason("The agent’s own transcript was not deleted", self.reason), "ask")
        if self.confirmed:
            return Label("The agent deleted its own transcript, and no longer lists the conversation", "off")
        return Label("The agent reports that it deleted its own transcript; nothing else shows it", "off")


class ReceiptWritten(
    Event,
    name="session.receipt",
    recorded_by="a start or a reattach; again, without `strategy` and `reason`, when the first turn settles `verified`",
    audited=True,
    timeline=Label("Receipt"),
    raises=(AttentionKind.RECEIPT, AttentionKind.UNPROVEN),
):
    """A receipt says what a start has restored."""

    receipt_id: str
    kind: str
    verified: str
    strategy: str | None = None
    reason: str | None = None

    def log_level(self) -> int:
        """Return WARNING for a start that failed."""
        if self.kind == ReceiptKind.FAILED:
            return logging.WARNING
        return logging.INFO

    def update_inbox(self, inbox: Inbox) -> None:
        """Report a fresh start only if it lost a conversation and no user chose it; judge the agent's memory."""
        is_unwanted = self.kind == ReceiptKind.FRESH and self.reason not in (None, CHOSEN_FRESH_START)
        if is_unwanted and inbox.has_completed_turn():
            inbox.raise_item(notices.receipt_notice(self.receipt_id))
        if self.kind not in (ReceiptKind.REATTACHED, ReceiptKind.WORKSPACE_ONLY):
            self._judge_memory(inbox)

    def _judge_memory(self, inbox: Inbox) -> None:
        """Raise or resolve the item about unproven memory; only the newest start counts."""
        is_unproven = self.verified == Verified.UNPROVEN and self.kind in (ReceiptKind.RESUMED, ReceiptKind.LOADED)
        if is_unproven and inbox.has_completed_turn():
            inbox.raise_item(notices.unproven_notice(self.receipt_id))
        else:
            inbox.resolve("settled", kinds=(AttentionKind.UNPROVEN,))

    @classmethod
    def foreign_ids(cls, line: LogEvent) -> Mapping[str, tuple[str, object]]:
        """Replace the receipt's id."""
        return {"receipt_id": ("receipt", line.payload.get("receipt_id"))}

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """Add the receipt. One that is recorded again is settled: only its proof has changed."""
        key = uuid.UUID(line.payload["receipt_id"])
        kind, verified = text_value(line.payload, "kind")[:16], text_value(line.payload, "verified")[:16]
        if key in rows.receipts:
            rows.receipts[key].verified = verified
            return
        strategy, reason = text_value(line.payload, "strategy")[:16], text_value(line.payload, "reason")[:64]
        rows.receipts[key] = ReceiptRow(key, kind, verified, strategy, reason, line.at, line.seq - 1)
