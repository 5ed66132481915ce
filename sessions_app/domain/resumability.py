"""The only opinion on whether, why and how a session can be resumed (rules, section 8).

``assess`` is a table: the first row that fits speaks. Status, resume, prompt, sweep and page all ask
here. A read never writes: everything in this module is a function of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from executors_app.domain import WorkspaceState
from sessions_app.domain.states import TERMINAL_STATES, DesiredState, SessionState

SEEN_RECENTLY = timedelta(seconds=30)


class Strategy(StrEnum):
    """How an agent gets its context back."""

    NATIVE = "native"
    """The agent restores its own conversation from its token."""
    HISTORY = "history"
    """A new conversation; ours is told to it with the next prompt."""
    FRESH = "fresh"
    """A new conversation without a past."""


class Reason(StrEnum):
    """``resume_reason`` of a status."""

    RUNNING = "running"
    RECENTLY_SEEN = "recently_seen"
    TERMINAL_STATE = "terminal_state"
    GAVE_UP = "gave_up"
    WORKTREE_MISSING = "worktree_missing"
    CONTEXT_MISMATCH = "context_mismatch"
    AGENT_NOT_RUNNING_FRESH_START = "agent_not_running_fresh_start"
    AGENT_NOT_RUNNING = "agent_not_running"
    MISSING_RESUME_TOKEN = "missing_resume_token"  # noqa: S105  (a reason, no secret)
    NOT_RESUMABLE = "not_resumable"
    STOPPED_BY_USER = "stopped_by_user"
    NO_AGENT = "no_agent"
    """It is a workspace, and was never meant to have one."""
    DAMAGED_ROW = "damaged_row"
    """What its rows say cannot be: nobody can tell."""


class Mode(StrEnum):
    """``mode`` of a request to resume."""

    AUTO = "auto"
    RESUME = "resume"
    FRESH_START = "fresh_start"
    ACCEPT_MISMATCH = "accept_mismatch"
    WORKSPACE_ONLY = "workspace_only"


@dataclass(frozen=True, slots=True)
class ResumeFacts:
    """What is known of a session when somebody asks whether it can be resumed."""

    session_state: SessionState
    task_archived: bool
    give_up: bool
    """Restarted so often without success that only a user starts it again."""
    running: bool
    """An agent process of this session is up."""
    last_seen_at: datetime | None
    known_dead: bool
    """Somebody looked and the agent is gone: *recently seen* would be a lie."""
    workspace: WorkspaceState
    context_mismatch: bool
    """The last load contradicted the journal and nobody has decided since."""
    ever_prompted: bool
    type_supports_resume: bool
    profile_supports_resume: bool | None
    """None: it has no opinion. Likewise the probe of the running agent, which can only narrow."""
    probed_supports_resume: bool | None
    has_token: bool
    """A token that is believed in; a rejected one has been set aside and does not count."""
    token_rejected: bool
    history_allowed: bool
    has_row: bool
    """The session has its ``executors_running`` row."""
    desired_state: DesiredState
    stopped_by_user: bool
    token_strange: bool = False
    """The only token that there is came from another agent profile, agent type or directory."""
    has_agent: bool = True
    """False: a workspace that no agent is ever started in; it runs where its agentctl does."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """The answer, in the words of a status."""

    is_resumable: bool
    needs_resume: bool
    resume_reason: Reason
    strategy: Strategy | None
    supports_session_resume: bool
    row: int
    """The row of the table that spoke, 1 to 13; 0: its rows are damaged, and the table was not asked."""
    token_strange: bool = False
    """As ``ResumeFacts.token_strange``: the old conversation cannot be tried again as things stand."""
    below: Assessment | None = None
    """What a later row says, where this one only speaks over it: 1, 2, 4 and *stopped by the user*."""

    @property
    def cause(self) -> Assessment:
        """The row that says what a start would meet, whatever speaks over it."""
        return self.below.cause if self.below else self

    @property
    def without_live_agent(self) -> Assessment:
        """The answer as if no agent were seen (rows 1 and 2 taken off)."""
        return self.below if self.below and self.row <= 2 else self


DAMAGED_ASSESSMENT = Assessment(
    is_resumable=False,
    needs_resume=False,
    resume_reason=Reason.DAMAGED_ROW,
    strategy=None,
    supports_session_resume=False,
    row=0,
)
"""The answer where the rows hold what cannot be."""


@dataclass(frozen=True, slots=True)
class ModeVerdict:
    """Whether a mode may be used; ``refusal`` is an API error code or empty.

    Allowed with strategy None means: the workspace, without an agent.
    """

    strategy: Strategy | None = None
    refusal: str = ""

    @property
    def allowed(self) -> bool:
        """Whether the start may be asked for."""
        return not self.refusal


def supports_session_resume(facts: ResumeFacts) -> bool:
    """The AND of the three witnesses: agent type, row, probe of the running agent."""
    return (
        facts.type_supports_resume
        and facts.profile_supports_resume is not False
        and facts.probed_supports_resume is not False
    )


def without_agent(facts: ResumeFacts) -> ResumeFacts:
    """The same session as if no agent of it were running."""
    return replace(facts, running=False, known_dead=True)


def _was_seen_recently(facts: ResumeFacts, now: datetime) -> bool:
    # The absolute: what a wrong clock has dated ahead is not seen for ever.
    return not facts.known_dead and facts.last_seen_at is not None and abs(now - facts.last_seen_at) < SEEN_RECENTLY


def _is_stopped_by_user(facts: ResumeFacts) -> bool:
    return facts.stopped_by_user and facts.desired_state == DesiredState.STOPPED


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of the table from row 5 on: what must hold, and what it says then."""

    number: int
    holds: Callable[[ResumeFacts], bool]
    reason: Reason
    strategy: Strategy | None = None
    needs_resume: Callable[[ResumeFacts], bool] = lambda _: False


def _can_tell_history(facts: ResumeFacts) -> bool:
    token = facts.has_token and supports_session_resume(facts)
    return not token and facts.history_allowed and facts.has_row


_FRESH_START = Reason.AGENT_NOT_RUNNING_FRESH_START
NO_AGENT_ROW = 13
_ROWS = (
    _Row(5, lambda f: f.workspace is WorkspaceState.GONE, Reason.WORKTREE_MISSING),
    _Row(NO_AGENT_ROW, lambda f: not f.has_agent, Reason.NO_AGENT),
    _Row(6, lambda f: f.context_mismatch, Reason.CONTEXT_MISMATCH),
    _Row(7, lambda f: not f.ever_prompted, _FRESH_START, Strategy.FRESH, lambda _: True),
    _Row(
        8,
        lambda f: supports_session_resume(f) and f.has_token,
        Reason.AGENT_NOT_RUNNING,
        Strategy.NATIVE,
        lambda _: True,
    ),
    _Row(9, _can_tell_history, _FRESH_START, Strategy.HISTORY, lambda f: not f.token_rejected),
    _Row(10, lambda f: f.token_rejected, _FRESH_START, Strategy.FRESH),
    _Row(11, supports_session_resume, Reason.MISSING_RESUME_TOKEN),
    _Row(12, lambda _: True, Reason.NOT_RESUMABLE),
)


def assess(facts: ResumeFacts, now: datetime) -> Assessment:
    """Whether, why and how this session can be resumed; the first row of section 8 that fits."""
    if facts.running:
        return _while_seen(_assess_at_rest(facts), 1, Reason.RUNNING)
    if _was_seen_recently(facts, now) and not _is_stopped_by_user(facts):
        return _while_seen(_assess_at_rest(facts), 2, Reason.RECENTLY_SEEN)
    return _assess_at_rest(facts)


def _assess_at_rest(facts: ResumeFacts) -> Assessment:
    """Rows 3 to 13: the session as it is without its agent."""
    if facts.session_state in TERMINAL_STATES or facts.task_archived:
        return _assessment(facts, 3, Reason.TERMINAL_STATE)
    below = _assess_ordinary(facts)
    if facts.session_state == SessionState.FAILED or facts.give_up:
        return replace(below, row=4, is_resumable=True, needs_resume=False, resume_reason=Reason.GAVE_UP, below=below)
    if _is_stopped_by_user(facts) and below.row > 6:
        return replace(below, needs_resume=False, resume_reason=Reason.STOPPED_BY_USER, below=below)
    return below


def _assess_ordinary(facts: ResumeFacts) -> Assessment:
    """Rows 5 to 13."""
    row = next(row for row in _ROWS if row.holds(facts))
    return _assessment(facts, row.number, row.reason, row.strategy, needs_resume=row.needs_resume(facts))


def _assessment(
    facts: ResumeFacts, row: int, reason: Reason, strategy: Strategy | None = None, *, needs_resume: bool = False
) -> Assessment:
    return Assessment(
        is_resumable=strategy is not None,
        needs_resume=needs_resume,
        resume_reason=reason,
        strategy=strategy,
        supports_session_resume=supports_session_resume(facts),
        row=row,
        token_strange=facts.token_strange,
    )


def _while_seen(below: Assessment, row: int, reason: Reason) -> Assessment:
    """Rows 1 and 2: as below, but nothing needs doing now."""
    return replace(below, needs_resume=False, resume_reason=reason, strategy=None, row=row, below=below)


_REFUSALS = {
    0: "damaged_row",
    3: "terminal_state",
    5: "worktree_missing",
    6: "not_resumable",
    11: "missing_resume_token",
    12: "not_resumable",
}


def assess_mode(assessment: Assessment, mode: str) -> ModeVerdict:
    """What a user's request in ``mode`` comes to: a strategy, or the code it is refused with.

    ``auto`` takes what the table says. ``resume`` insists on the conversation: a rejected token is
    tried again (the caller takes it from where it was set aside), and a fresh start is no answer
    unless there is nothing to lose. ValueError for an unknown mode.
    """
    asked = Mode(mode)
    cause = assessment.cause
    if assessment.row == 1:
        return ModeVerdict(refusal="already_running")
    if cause.row in (0, 3, 5):
        return ModeVerdict(refusal=_REFUSALS[cause.row])
    if asked is Mode.WORKSPACE_ONLY or (cause.row == NO_AGENT_ROW and asked is Mode.AUTO):
        return ModeVerdict()
    if cause.row == NO_AGENT_ROW:
        return ModeVerdict(refusal=str(Reason.NO_AGENT))
    if asked is Mode.FRESH_START:
        return ModeVerdict(Strategy.FRESH)
    return _with_conversation(cause, asked)


def _with_conversation(cause: Assessment, mode: Mode) -> ModeVerdict:
    """Modes ``auto``, ``resume`` and ``accept_mismatch`` over rows 6 to 12."""
    if mode is Mode.ACCEPT_MISMATCH and cause.row == 6:
        return ModeVerdict(Strategy.NATIVE)
    if mode is Mode.RESUME and token_was_rejected(cause):
        return ModeVerdict(refusal="strange_token") if cause.token_strange else ModeVerdict(Strategy.NATIVE)
    if cause.row in _REFUSALS:
        return ModeVerdict(refusal=_REFUSALS[cause.row])
    return ModeVerdict(cause.strategy)


def token_was_rejected(assessment: Assessment) -> bool:
    """Whether the agent said that the conversation is gone, or it is another's: its token is not given unasked."""
    cause = assessment.cause
    return cause.row == 10 or (cause.row == 9 and not cause.needs_resume)
