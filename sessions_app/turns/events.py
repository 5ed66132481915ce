"""Turns: their beginning, their ends, silences, and the limits of their output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from pydantic import Field

from executors_app.wire.protocol import Code
from sessions_app.attention.rules import notices
from sessions_app.attention.rules.notices import AttentionKind
from sessions_app.kernel.events.base import Event, Inbox, with_reason
from sessions_app.kernel.rules.log_event import LogEvent
from sessions_app.kernel.rules.rebuild import KEY_LIMIT, SessionRebuild, text_value
from sessions_app.kernel.rules.states import CANCELLED_BY_AGENT, RunState, TurnOrigin
from sessions_app.kernel.rules.wording import join_alternatives
from sessions_app.sessions.rules.situation_facts import Label, humanize_code
from sessions_app.stream.rules.usage import parse_stored_usage
from sessions_app.waits.rules.wait_keys import WaitKind

_INTERRUPTION_CAUSES: Final[Mapping[str, str]] = {
    "wait_timeout": "Nobody answered in time, so the wait ended",
    "agent_gone": "The agent’s process ended in the middle of the turn",
    "agent_exited": "The agent’s process ended in the middle of the turn",
    "agentctl_gone": "The agent and its agentctl ended in the middle of the turn",
    "out_of_memory": "The system ended the agent in the middle of the turn, because memory ran out",
    "host_lost": "The turn was interrupted because its host was declared lost",
    "stopped": "The turn ended because the agent was stopped",
    "closed": "The turn ended because the session was closed",
}
_END_CAUSES: Final[Mapping[str, str]] = {
    "agent_gone": "the agent’s process ended",
    "agent_exited": "the agent’s process ended",
    "agentctl_gone": "the agent and its agentctl ended",
    "out_of_memory": "memory ran out",
    "stopped": "the agent was stopped",
    "closed": "the session was closed",
    "idle": "the session fell asleep",
    "drained": "its host is under maintenance",
    "host_lost": "its host was declared lost",
}
_OWN_WORK_ENDS: Final[Mapping[str, Label]] = {
    "quiet": Label("The agent’s own work counts as ended: nothing more has arrived", "good"),
    "announced": Label("The agent ended its own work", "good"),
}
_RESUMED_LABELS: Final[Mapping[str, Label]] = {
    "resolved": Label("The agent’s request was answered, and the turn continued", "busy"),
    "completed": Label("The agent’s question was settled, and the turn continued", "busy"),
    "timeout": Label("Nobody answered in time, so the agent’s request was cancelled, and the turn continued", "ask"),
    "withdrawn": Label("The agent withdrew its request, and the turn continued", "busy"),
    "turn_cancelled": Label("The agent’s request was closed with its turn", "off"),
    "result": Label("The external result arrived, and the session continued", "busy"),
}


class RunEvent(Event):
    """Something happened in a run."""

    def may_change_status(self) -> bool:
        """Return True: the derived status follows from the newest run."""
        return True


class RunStarted(
    RunEvent,
    name="session.run.started",
    recorded_by="ingest, when the agent has accepted a prompt, or works without one",
    timeline=Label("A turn began", "busy"),
    quotes_prompt=True,
):
    """A run has started."""

    run_id: str
    message_id: str
    origin: str | None = Field(
        default=None, description="who began the turn: `prompt`, `kandev` or `agent`; absent for an external wait"
    )

    def timeline_label(self) -> Label:
        """Say whether the agent began it itself."""
        assert self.timeline is not None  # noqa: S101 - declared above
        if self.origin == TurnOrigin.AGENT:
            return Label("The agent began to work on its own", "busy")
        return self.timeline

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """Add the run; the user's next message is its prompt, unless the agent began it."""
        origin = text_value(line.payload, "origin")
        if origin != TurnOrigin.AGENT:
            rows.expected = text_value(line.payload, "message_id")[:KEY_LIMIT]
        run = rows.run(line)
        run.first_seq = line.seq
        run.origin = None
        if origin in set(TurnOrigin):
            run.origin = origin


class RunMoved(RunEvent):
    """A run has another state."""

    run_id: str
    message_id: str
    reason: str


class RunWaiting(
    RunMoved,
    name="session.run.waiting",
    recorded_by="ingest, when the agent asks for a permission or a question; a request for a "
    "[wait](operate/work.md#let-a-session-wait-for-a-build)",
):
    """A run waits for an answer."""

    wait_kind: str = Field(description=join_alternatives(f"`{kind}`" for kind in WaitKind))
    wait_id: str
    resume_token_id: str = Field(description="of the key that answers it")
    deadline: str | None
    asks: str | None = Field(default=None, description="`permission` or `question`")

    def timeline_label(self) -> Label:
        """Say what it waits for."""
        if self.wait_kind != WaitKind.PERMISSION:
            return Label(with_reason("Waiting for an external result", self.reason), "ask")
        if self.asks == "question":
            return Label("The agent asked a question and is waiting", "ask")
        return Label("The agent asked for permission and is waiting", "ask")

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """Let the run wait."""
        run = rows.run(line)
        run.state, run.waited, run.since_seq = RunState.WAITING, True, line.seq
        run.wait_kind = text_value(line.payload, "wait_kind")[:16]
        run.wait_id = text_value(line.payload, "wait_id")[:KEY_LIMIT]


class RunResumed(
    RunMoved,
    name="session.run.resumed",
    recorded_by="ingest, when the run no longer waits; the request that ends a wait with its key",
    timeline=Label("The wait ended", "busy"),
):
    """A run no longer waits."""

    def timeline_label(self) -> Label:
        """Say how the wait ended; only an answer, a result or a deadline lets the turn continue for certain."""
        assert self.timeline is not None  # noqa: S101 - declared above
        return _RESUMED_LABELS.get(self.reason, self.timeline)

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """Let the run continue."""
        rows.run(line).state = RunState.RUNNING


class RunEnded(RunMoved):
    """A run has ended."""

    end_state: ClassVar[RunState]

    stop_reason: str | None = Field(default=None, description="why the agent stopped, in its own words")
    usage: dict[str, Any] | None = Field(
        default=None, description="the figures that the agent reported in this turn: tokens, `cost` and `currency`"
    )
    counted: dict[str, Any] | None = Field(
        default=None,
        description="what this turn alone has used, as far as it is known: `tokens`, `input_tokens`, `output_tokens`, "
        "`cached_tokens`, `cost` and `currency`",
    )

    def update_inbox(self, inbox: Inbox) -> None:
        """Drop the notice that the agent ignored a cancel: its turn has ended."""
        inbox.forget_ignored_cancel(self.run_id)

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """End the run."""
        run = rows.run(line)
        run.waited = run.state == RunState.WAITING
        run.state, run.ended_at = cls.end_state, line.at
        run.reason = text_value(line.payload, "reason")[:64]
        run.last_seq = line.seq
        run.stop_reason = text_value(line.payload, "stop_reason")[:64] or None
        usage = line.payload.get("usage")
        run.usage = None
        if isinstance(usage, Mapping):
            run.usage = parse_stored_usage(usage)
        counted = line.payload.get("counted")
        run.counted = dict(counted) if isinstance(counted, Mapping) else {}


class RunCompleted(
    RunEnded,
    name="session.run.completed",
    recorded_by="ingest; `reason` is why the agent stopped",
    timeline=Label("The turn was completed", "good"),
):
    """A turn was completed."""

    end_state = RunState.COMPLETED

    def timeline_label(self) -> Label:
        """Say how work ended that the agent began itself: it gives no answer that tells."""
        assert self.timeline is not None  # noqa: S101 - declared above
        return _OWN_WORK_ENDS.get(self.reason, self.timeline)


class RunFailed(
    RunEnded,
    name="session.run.failed",
    recorded_by="ingest; also for a turn that ended with a refusal (`turn_refused`) or without output (`no_output`)",
):
    """A turn has failed."""

    end_state = RunState.FAILED

    error_code: str | None
    error_message: str | None

    def timeline_label(self) -> Label:
        """Return the error."""
        if self.reason == Code.AGENT_BUSY:
            return Label("The agent did not take the prompt, because it was working on its own", "ask")
        return Label(with_reason("The turn failed", self.error_message), "bad")


class RunCancelled(
    RunEnded,
    name="session.run.cancelled",
    recorded_by="ingest; `reason` is `cancelled_by_agent` if nobody asked the agent to cancel its turn",
):
    """A run was cancelled."""

    end_state = RunState.CANCELLED

    def timeline_label(self) -> Label:
        """Say who cancelled it and why, unless a user simply cancelled it."""
        if self.reason == CANCELLED_BY_AGENT:
            return Label("The agent cancelled the turn on its own", "ask")
        if self.reason == "cancelled":
            return Label("The turn was cancelled", "off")
        return Label(with_reason("The turn was cancelled", humanize_code(self.reason)), "off")


class RunInterrupted(
    RunEnded,
    name="session.run.interrupted",
    recorded_by="whatever finds that the agent is gone or (`wait_timeout`) that a wait was not ended in time; once "
    "for each run",
    audited=True,
    raises=(AttentionKind.WAIT_INTERRUPTED,),
):
    """A run was interrupted."""

    end_state = RunState.INTERRUPTED

    unfinished_tools: list[str] | None = Field(default=None, description="titles of tool calls without a result")

    def timeline_label(self) -> Label:
        """Say what interrupted it."""
        cause = _INTERRUPTION_CAUSES.get(self.reason)
        return Label(cause or with_reason("The turn was interrupted", humanize_code(self.reason)), "bad")

    def update_inbox(self, inbox: Inbox) -> None:
        """Also report an external wait that nobody ended in time."""
        super().update_inbox(inbox)
        reason = inbox.interrupted_wait(self.run_id)
        if reason is not None:
            inbox.raise_item(notices.wait_interrupted_notice(self.run_id, reason))


class OutsideWorkInterrupted(
    Event,
    name="session.outside_work.interrupted",
    recorded_by="whatever finds that the agent is gone, or ends it",
    audited=True,
):
    """Work of an agent outside its turns was cut off, or processes that its turns had left running ended with it."""

    reason: str = Field(description="as of `session.run.interrupted`")
    was_working: bool = Field(description="whether output of the agent arrived, or a tool call had no result")
    unfinished_tools: list[str] = Field(description="titles of tool calls without a result")
    processes: list[str] = Field(description="command lines of processes that ended with the agent, at most 20")
    process_count: int

    def timeline_label(self) -> Label:
        """Say what was cut off, and by what."""
        if self.was_working:
            what = "Work outside a turn was cut off"
        else:
            what = "Processes that the agent had left ended"
        return Label(with_reason(what, _END_CAUSES.get(self.reason) or humanize_code(self.reason)), "bad")


RUN_EVENTS: Final[Mapping[str, type[RunMoved]]] = {
    RunState.RUNNING: RunResumed,
    RunState.WAITING: RunWaiting,
    RunState.COMPLETED: RunCompleted,
    RunState.FAILED: RunFailed,
    RunState.CANCELLED: RunCancelled,
    RunState.INTERRUPTED: RunInterrupted,
}
"""The event of each state that a run moves to."""


class RunRetrying(
    RunEvent,
    name="session.run.retrying",
    recorded_by="ingest, after `session.run.failed`",
    audited=True,
):
    """A failed turn is retried."""

    message_id: str = Field(description="of the next attempt")
    attempt: int
    of: int
    at: str | None = Field(description="the earliest time of the attempt")
    error_code: str = Field(description="a [temporary provider error](codes.md#errors-of-a-models-provider-that-pass)")
    error_message: str

    def timeline_label(self) -> Label:
        """Say which attempt it is."""
        attempts = f"attempt {self.attempt} of {self.of}"
        return Label(f"The model’s provider had a temporary error, so the turn is retried ({attempts})", "ask")


class RunStalled(
    RunEvent,
    name="session.run.stalled",
    recorded_by="the supervisor, once for each silence longer than `KANDEV_STALL_NOTICE`; the turn continues",
    audited=True,
    timeline=Label("The agent has not responded for a while; nothing was stopped", "ask"),
    raises=(AttentionKind.STALLED,),
):
    """The agent is silent in its turn."""

    run_id: str
    since: str = Field(description="the agent's last output")
    unfinished_tools: list[str]

    def update_inbox(self, inbox: Inbox) -> None:
        """Raise an item about the silence."""
        inbox.raise_item(notices.stalled_notice(self.run_id, self.since))


class RunCancelIgnored(
    RunEvent,
    name="session.run.cancel_ignored",
    recorded_by="the supervisor, once for a turn that continues for 30 seconds after its cancel; the turn continues",
    audited=True,
    timeline=Label("The agent was asked to cancel its turn, and continues it", "ask"),
    raises=(AttentionKind.CANCEL_IGNORED,),
):
    """The agent continues a turn that it was asked to cancel."""

    message_id: str
    run_id: str
    since: str = Field(description="when its agent was asked to cancel")

    def update_inbox(self, inbox: Inbox) -> None:
        """Raise an item about the turn."""
        inbox.raise_item(notices.cancel_ignored_notice(self.run_id, self.since))


class RunHeardAgain(
    RunEvent,
    name="session.run.heard_again",
    recorded_by="ingest, when the agent responds again after a silence",
    timeline=Label("The agent responds again", "busy"),
):
    """The agent responds again."""

    run_id: str | None

    def update_inbox(self, inbox: Inbox) -> None:
        """Resolve the item about the silence."""
        inbox.resolve("heard_again", kinds=(AttentionKind.STALLED,))


class OutputLimited(
    Event,
    name="session.output.limited",
    recorded_by="ingest, when the agent's output has reached a "
    "[limit](operate/work.md#limits-of-an-agents-output); output is left out from then on",
    audited=True,
    timeline=Label("The agent’s output reached its limit, and is no longer stored", "ask"),
    raises=(AttentionKind.OUTPUT_LIMIT,),
):
    """The agent's output is no longer stored."""

    limit: str = Field(description="the setting")
    bytes_: int

    def update_inbox(self, inbox: Inbox) -> None:
        """Raise an item about the limit."""
        inbox.raise_item(notices.output_limit_notice(inbox.session_id, self.limit, inbox.last_seq))


class OutputLeftOut(
    Event,
    name="session.output.left_out",
    recorded_by="ingest, where output is missing: at the end of the turn, or when output is stored again",
    audited=True,
):
    """Output is missing at this place of the log."""

    bytes_: int


class OutputResumed(
    Event,
    name="session.output.resumed",
    recorded_by="a user's request, or ingest with the next turn",
    timeline=Label("The agent’s output is stored again", "busy"),
):
    """The agent's output is stored again."""

    limit: str
    reason: str = Field(description="`allowed` or `next_turn`")
    by: str | None = Field(default=None, description="the user who allowed it")

    def update_inbox(self, inbox: Inbox) -> None:
        """Resolve the item about the limit."""
        inbox.resolve(self.reason, kinds=(AttentionKind.OUTPUT_LIMIT,))
