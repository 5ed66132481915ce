"""Decide whether and how a session can be resumed, why or why not, and which policy resumes it without a request.

``assess`` is the only place where this is decided: status, resume, prompt, sweep and page all call it. It is an
ordered table, of which the first row that matches answers; docs/recovery.md lists the rows. Everything here is a
function of its arguments and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum

from executors_app.wire.executions import WorkspaceState
from sessions_app.kernel.rules.states import TERMINAL_STATES, DesiredState, SessionState, WorkState

SEEN_RECENTLY = timedelta(seconds=30)
UNREACHABLE = "unreachable"
"""Error code of execution and session while it is unknown whether the agent runs."""
LEFT_UNREAD_MESSAGE = (
    "The session's agentctl has ended, but the place that it ran in cannot be read now, so it is not known whether the "
    "agent finished its turn. Checking again."
)
"""Error message with that code of an execution that has ended, and whose last lines have not been read."""
WORKTREE_MISSING = "worktree_missing"
HOST_LOST = "host_lost"
"""Error code of a session, and ``status_reason`` of its executions, whose host a person has declared lost."""
MAX_CLOCK_SKEW = timedelta(days=1)
"""Times further ahead than this were written by a wrong clock, and nothing waits for them."""


class Strategy(StrEnum):
    """How a session's agent gets its context back."""

    NATIVE = "native"
    """The agent restores its own conversation, named by the resume token."""
    HISTORY = "history"
    """The agent opens a new conversation, and the next prompt carries the history from our log."""
    FRESH = "fresh"
    """The agent opens a new conversation and knows nothing of the old one."""


class Reason(StrEnum):
    """Why a session can or cannot be resumed: ``resume_reason`` of its status."""

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
    """The session is a workspace that never has an agent."""
    DAMAGED_ROW = "damaged_row"
    """The session's rows contain impossible values, so nothing can be said about it."""


class Mode(StrEnum):
    """``mode`` of a request to resume: what the user asks for."""

    AUTO = "auto"
    RESUME = "resume"
    FRESH_START = "fresh_start"
    ACCEPT_MISMATCH = "accept_mismatch"
    WORKSPACE_ONLY = "workspace_only"


class Row(IntEnum):
    """The rows of the table, by their numbers in docs/recovery.md."""

    DAMAGED = 0
    """The rows of the session contain impossible values, and the table was not used."""
    RUNNING = 1
    RECENTLY_SEEN = 2
    TERMINAL = 3
    GAVE_UP = 4
    WORKTREE_MISSING = 5
    MISMATCH = 6
    NEVER_PROMPTED = 7
    CONVERSATION = 8
    HISTORY = 9
    TOKEN_REJECTED = 10
    TOKEN_MISSING = 11
    NOT_RESUMABLE = 12
    NO_AGENT = 13


_SEEN_ROWS = frozenset({Row.RUNNING, Row.RECENTLY_SEEN})
_UNUSABLE_ROWS = frozenset({Row.DAMAGED, Row.TERMINAL, Row.WORKTREE_MISSING})
"""Rows after which nothing can be started, in whatever mode."""


@dataclass(frozen=True, slots=True)
class ResumeFacts:
    """What is known about a session when its resumability is assessed."""

    session_state: SessionState
    task_archived: bool
    running: bool
    """An agent process of this session is running."""
    last_seen_at: datetime | None
    known_dead: bool
    """The agent is known to be gone, so ``last_seen_at`` proves nothing."""
    workspace: WorkspaceState
    context_mismatch: bool
    """The last load contradicted our journal, and no user has decided since."""
    ever_prompted: bool
    type_supports_resume: bool
    profile_supports_resume: bool | None
    """The profile's own setting; None: it has none. It can only narrow what the agent type claims."""
    probed_supports_resume: bool | None
    has_token: bool
    """There is a token that the agent may be given. A rejected token is stored separately and does not count."""
    token_rejected: bool
    history_allowed: bool
    has_row: bool
    """The session has a row in ``executors_running``."""
    desired_state: DesiredState
    stopped_by_user: bool
    token_strange: bool = False
    """The only token belongs to another agent profile, agent type or directory."""
    has_agent: bool = True
    """False: a workspace in which no agent is ever started."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """The answer of the table, in the terms of a status."""

    is_resumable: bool
    needs_resume: bool
    resume_reason: Reason
    strategy: Strategy | None
    supports_session_resume: bool
    row: Row
    """The row that answered."""
    token_strange: bool = False
    """As ``ResumeFacts.token_strange``: the old conversation cannot be tried again in this configuration."""
    below: Assessment | None = None
    """The answer of the next row that matches, if this one hides it: rows 1, 2 and 4, and a stop by the user."""

    @property
    def cause(self) -> Assessment:
        """The answer that decides what a start would meet, under all rows that hide it."""
        if self.below:
            return self.below.cause
        return self

    @property
    def without_live_agent(self) -> Assessment:
        """The answer as if no agent had been seen, without rows 1 and 2."""
        if self.below and self.row in _SEEN_ROWS:
            return self.below
        return self

    @property
    def is_running(self) -> bool:
        """Whether an agent is running."""
        return self.row is Row.RUNNING

    @property
    def is_at_rest(self) -> bool:
        """Whether no agent is running or was seen recently, and the rows can be read."""
        return self.row is not Row.DAMAGED and self.row not in _SEEN_ROWS

    @property
    def can_be_started(self) -> bool:
        """Whether some mode could start something here, now or after its agent has ended."""
        return self.cause.row not in _UNUSABLE_ROWS

    @property
    def has_mismatch(self) -> bool:
        """Whether a start would meet a conversation that contradicted our journal."""
        return self.cause.row is Row.MISMATCH


DAMAGED_ASSESSMENT = Assessment(
    is_resumable=False,
    needs_resume=False,
    resume_reason=Reason.DAMAGED_ROW,
    strategy=None,
    supports_session_resume=False,
    row=Row.DAMAGED,
)
"""The answer for a session whose rows contain impossible values."""


@dataclass(frozen=True, slots=True)
class ModeVerdict:
    """Whether a mode may be used, and the strategy it leads to.

    ``refusal`` is an API error code, empty if the mode is allowed. Allowed without a strategy means: start the
    workspace without an agent.
    """

    strategy: Strategy | None = None
    refusal: str = ""

    @property
    def allowed(self) -> bool:
        """Whether the mode may be used."""
        return not self.refusal


def supports_session_resume(facts: ResumeFacts) -> bool:
    """Whether agent type, agent profile and running agent all support resuming.

    None of profile and probe counts as no objection.
    """
    return (
        facts.type_supports_resume
        and facts.profile_supports_resume is not False
        and facts.probed_supports_resume is not False
    )


def _was_seen_recently(facts: ResumeFacts, now: datetime) -> bool:
    # abs(): a time that a wrong clock has set in the future must not count as recent for ever.
    return not facts.known_dead and facts.last_seen_at is not None and abs(now - facts.last_seen_at) < SEEN_RECENTLY


def _is_stopped_by_user(facts: ResumeFacts) -> bool:
    return facts.stopped_by_user and facts.desired_state == DesiredState.STOPPED


@dataclass(frozen=True, slots=True)
class _Answer:
    """One row of the table, from row 5 on: its condition and its answer."""

    name: Row
    holds: Callable[[ResumeFacts], bool]
    reason: Reason
    strategy: Strategy | None = None
    needs_resume: Callable[[ResumeFacts], bool] = lambda _: False


def _can_tell_history(facts: ResumeFacts) -> bool:
    """Whether a new conversation may get the history, and no token makes that unnecessary."""
    token = facts.has_token and supports_session_resume(facts)
    return not token and facts.history_allowed and facts.has_row


_FRESH_START = Reason.AGENT_NOT_RUNNING_FRESH_START
_ANSWERS = (
    _Answer(Row.WORKTREE_MISSING, lambda f: f.workspace is WorkspaceState.GONE, Reason.WORKTREE_MISSING),
    _Answer(Row.NO_AGENT, lambda f: not f.has_agent, Reason.NO_AGENT),
    _Answer(Row.MISMATCH, lambda f: f.context_mismatch, Reason.CONTEXT_MISMATCH),
    _Answer(Row.NEVER_PROMPTED, lambda f: not f.ever_prompted, _FRESH_START, Strategy.FRESH, lambda _: True),
    _Answer(
        Row.CONVERSATION,
        lambda f: supports_session_resume(f) and f.has_token,
        Reason.AGENT_NOT_RUNNING,
        Strategy.NATIVE,
        lambda _: True,
    ),
    _Answer(Row.HISTORY, _can_tell_history, _FRESH_START, Strategy.HISTORY, lambda f: not f.token_rejected),
    _Answer(Row.TOKEN_REJECTED, lambda f: f.token_rejected, _FRESH_START, Strategy.FRESH),
    _Answer(Row.TOKEN_MISSING, supports_session_resume, Reason.MISSING_RESUME_TOKEN),
    _Answer(Row.NOT_RESUMABLE, lambda _: True, Reason.NOT_RESUMABLE),
)


def assess(facts: ResumeFacts, now: datetime) -> Assessment:
    """Assess whether and how the session can be resumed: the first row that matches answers."""
    if facts.running:
        return _while_seen(_assess_at_rest(facts), Row.RUNNING, Reason.RUNNING)
    if _was_seen_recently(facts, now) and not _is_stopped_by_user(facts):
        return _while_seen(_assess_at_rest(facts), Row.RECENTLY_SEEN, Reason.RECENTLY_SEEN)
    return _assess_at_rest(facts)


def _assess_at_rest(facts: ResumeFacts) -> Assessment:
    """Rows 3 to 13: assess the session without its agent."""
    if facts.session_state in TERMINAL_STATES or facts.task_archived:
        return _assessment(facts, Row.TERMINAL, Reason.TERMINAL_STATE)
    found = next(answer for answer in _ANSWERS if answer.holds(facts))
    below = _assessment(facts, found.name, found.reason, found.strategy, needs_resume=found.needs_resume(facts))
    if facts.session_state == SessionState.FAILED:
        return replace(
            below, row=Row.GAVE_UP, is_resumable=True, needs_resume=False, resume_reason=Reason.GAVE_UP, below=below
        )
    if _is_stopped_by_user(facts) and below.row not in (Row.WORKTREE_MISSING, Row.MISMATCH):
        return replace(below, needs_resume=False, resume_reason=Reason.STOPPED_BY_USER, below=below)
    return below


def _assessment(
    facts: ResumeFacts, row: Row, reason: Reason, strategy: Strategy | None = None, *, needs_resume: bool = False
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


def _while_seen(below: Assessment, row: Row, reason: Reason) -> Assessment:
    """Rows 1 and 2: the answer ``below``, except that nothing needs to be done now."""
    return replace(below, needs_resume=False, resume_reason=reason, strategy=None, row=row, below=below)


_REFUSALS = {
    Row.DAMAGED: "damaged_row",
    Row.TERMINAL: "terminal_state",
    Row.WORKTREE_MISSING: "worktree_missing",
    Row.MISMATCH: "not_resumable",
    Row.TOKEN_MISSING: "missing_resume_token",
    Row.NOT_RESUMABLE: "not_resumable",
}


def assess_mode(assessment: Assessment, mode: str) -> ModeVerdict:
    """Decide what a user's request in ``mode`` leads to: a strategy, or the error code of its refusal.

    ``auto`` follows the table. ``resume`` insists on the conversation: a rejected token is tried again (the caller
    restores it), and a fresh start is allowed only if there is no conversation to lose. Raises ValueError for an
    unknown mode.
    """
    requested = Mode(mode)
    cause = assessment.cause
    if assessment.is_running:
        return ModeVerdict(refusal="already_running")
    if not assessment.can_be_started:
        return ModeVerdict(refusal=_REFUSALS[cause.row])
    if requested is Mode.WORKSPACE_ONLY or (cause.row is Row.NO_AGENT and requested is Mode.AUTO):
        return ModeVerdict()
    if cause.row is Row.NO_AGENT:
        return ModeVerdict(refusal=str(Reason.NO_AGENT))
    if requested is Mode.FRESH_START:
        return ModeVerdict(Strategy.FRESH)
    return _with_conversation(cause, requested)


def _with_conversation(cause: Assessment, mode: Mode) -> ModeVerdict:
    """Decide modes ``auto``, ``resume`` and ``accept_mismatch`` for rows 6 to 12."""
    if mode is Mode.ACCEPT_MISMATCH and cause.has_mismatch:
        return ModeVerdict(Strategy.NATIVE)
    if mode is Mode.RESUME and token_was_rejected(cause):
        if cause.token_strange:
            return ModeVerdict(refusal="strange_token")
        return ModeVerdict(Strategy.NATIVE)
    if cause.row in _REFUSALS:
        return ModeVerdict(refusal=_REFUSALS[cause.row])
    return ModeVerdict(cause.strategy)


def token_was_rejected(assessment: Assessment) -> bool:
    """Whether the token was set aside: the agent no longer knows the conversation, or it belongs to another agent.

    Such a token is given to an agent only if a user asks for it.
    """
    cause = assessment.cause
    return cause.row is Row.TOKEN_REJECTED or (cause.row is Row.HISTORY and not cause.needs_resume)


class Policy(StrEnum):
    """Which sessions get their agent back without anyone asking."""

    AUTO = "auto"
    """Every session that should run."""
    WORKING = "working"
    """Sessions that were working or have queued prompts."""
    ON_OPEN = "on_open"
    """Only when someone opens the page or sends a prompt."""
    MANUAL = "manual"
    """Only when someone asks for it."""


def policy_wants_agent(policy: str, work_state: str, has_queued_prompts: bool, boot: bool) -> bool:
    """Return whether ``policy`` starts, without a request, an agent that should run and does not.

    A queued prompt counts as a request. Only under ``manual`` at boot, or by command, is it ignored: the main loop
    takes it up in its next pass, so that such a sweep starts nothing.
    """
    match Policy(policy):
        case Policy.AUTO:
            return True
        case Policy.WORKING:
            return has_queued_prompts or work_state == WorkState.WORKING
        case Policy.ON_OPEN:
            return has_queued_prompts
        case Policy.MANUAL:
            return has_queued_prompts and not boot


class PolicySource(StrEnum):
    """Where a recovery policy is set, in order of precedence."""

    SESSION = "session"
    TEAM = "team"
    DEPLOYMENT = "deployment"


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The policy set in one place; empty and None: not set there."""

    policy: str = ""
    continues: bool | None = None


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """The recovery policy in effect for a session, and where it comes from."""

    policy: str
    """A value of ``Policy``; another text only in a damaged row."""
    source: PolicySource
    continues: bool
    """Whether interrupted turns are continued automatically, by a continue prompt."""
    continues_source: PolicySource | None
    """None: set nowhere, so it follows from the policy."""


def effective_policy(session: PolicyChoice, team: PolicyChoice, deployment: PolicyChoice) -> EffectivePolicy:
    """Combine the settings of session, team and deployment; the first that is set takes precedence.

    Policy and continuation are resolved independently. Continuation that is set nowhere is on if the policy is
    ``auto``.
    """
    choices = ((PolicySource.SESSION, session), (PolicySource.TEAM, team), (PolicySource.DEPLOYMENT, deployment))
    policy, policy_source = next(
        ((choice.policy, source) for source, choice in choices if choice.policy), ("auto", PolicySource.DEPLOYMENT)
    )
    for source, choice in choices:
        if choice.continues is not None:
            return EffectivePolicy(policy, policy_source, choice.continues, source)
    return EffectivePolicy(policy, policy_source, policy == Policy.AUTO, None)
