"""The one answer to "what is going on in this session?": an ordered table of situations.

Every row is a condition over plain facts; the first row that holds answers. Pages, chips, the API's
``stillness``, mail and inbox all take their words from here. Three questions are asked of the table:

- ``situation``: the first row; what a session's page says.
- ``idle_situation``: the first row with an ``IdleReason``; why nothing is happening, as the API reports it.
- ``status_label``: the first row with a label; the pill on board, task and session page.

Lists load fewer facts than a session's page (``assessment`` is None there). Rows that need the assessment
carry no label, so that a list and the page always show the same pill.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

from sessions_app.domain.agent_programs import NEEDS_PERSON_CODES, RETRY_SENTENCE
from sessions_app.domain.recovery_facts import UNREACHABLE, Policy, PolicySource, policy_wants_agent
from sessions_app.domain.restart_rules import WaitReason
from sessions_app.domain.resumability import Assessment, Reason, Strategy, token_was_rejected
from sessions_app.domain.states import (
    ENDED_STATES,
    TERMINAL_STATES,
    DesiredState,
    RunState,
    SessionState,
    TaskEnd,
    WorkState,
)
from sessions_app.domain.transient_errors import Retry

Tone = Literal["calm", "busy", "ask", "good", "bad", "off"]
Level = Literal["", "info", "warning", "error"]
"""How a page shows a situation: as a banner of this level, or (empty) as one plain line."""
Action = Literal[
    "",
    "cancel",
    "stop",
    "resume",
    "fresh_start",
    "try_again",
    "new_session",
    "choose_conversation",
    "review_prompts",
    "answer",
    "wait",
    "reopen",
    "unarchive",
]


@dataclass(frozen=True, slots=True)
class Label:
    """A short name and the tone of its pill."""

    text: str
    tone: str = "calm"


class Code(StrEnum):
    """The situations, in the order in which they are asked for."""

    DAMAGED = "damaged"
    OVER = "over"
    SUPERVISOR_STARTING = "supervisor_starting"
    RECOVERING = "recovering"
    UNREACHABLE = "unreachable"
    DISK = "disk"
    PERMISSION = "permission"
    HELD = "held"
    WORKTREE_MISSING = "worktree_missing"
    GAVE_UP = "gave_up"
    CONTEXT_MISMATCH = "context_mismatch"
    NO_SUPERVISOR = "no_supervisor"
    CAPACITY = "capacity"
    START_QUEUE = "start_queue"
    PROGRAM = "program"
    BACKING_OFF = "backing_off"
    NOT_RESUMABLE = "not_resumable"
    MISSING_RESUME_TOKEN = "missing_resume_token"  # noqa: S105  (a reason, no secret)
    TOKEN_REJECTED = "token_rejected"  # noqa: S105
    OVERDUE = "overdue"
    RETRYING = "retrying"
    CANCEL_IGNORED = "cancel_ignored"
    STALLED = "stalled"
    STARTING = "starting"
    OUTSIDE = "outside"
    WAIT_INTERRUPTED = "wait_interrupted"
    CONTINUING = "continuing"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"
    OWNER_LEFT = "owner_left"
    ERROR = "error"
    QUEUED = "queued"
    HISTORY_ARMED = "history_armed"
    ASLEEP = "asleep"
    WORKSPACE = "workspace"
    POLICY = "policy"
    RESTART_DUE = "restart_due"
    NOT_RUNNING = "not_running"
    TURN_FAILED = "turn_failed"
    YOUR_TURN = "your_turn"
    WORKING = "working"
    OTHER = "other"


class IdleReason(StrEnum):
    """``stillness.reason`` of a status: why nothing is happening."""

    RECOVERING = "recovering"
    PERMISSION = "permission"
    OUTSIDE = "outside"
    GAVE_UP = "gave_up"
    STOPPED = "stopped"
    OWNER_LEFT = "owner_left"
    CAPACITY = "capacity"
    TURN = "turn"
    NO_SUPERVISOR = "no_supervisor"
    STARTING = "starting"
    BACKING_OFF = "backing_off"
    UNREACHABLE = "unreachable"
    ERROR = "error"
    IN_DOUBT = "in_doubt"
    ASLEEP = "asleep"
    POLICY = "policy"
    NEXT_LOOK = "next_look"
    YOUR_TURN = "your_turn"


LABELS: Final[Mapping[Code, Label]] = {
    Code.RECOVERING: Label("Reconnecting", "busy"),
    Code.UNREACHABLE: Label("Unknown", "ask"),
    Code.PERMISSION: Label("Asks for permission", "ask"),
    Code.HELD: Label("Prompt in doubt", "ask"),
    Code.GAVE_UP: Label("Given up", "bad"),
    Code.START_QUEUE: Label("Waiting to start", "busy"),
    Code.BACKING_OFF: Label("Restarting soon", "ask"),
    Code.OVERDUE: Label("Prompt overdue", "ask"),
    Code.RETRYING: Label("Retrying", "busy"),
    Code.CANCEL_IGNORED: Label("Ignores cancel", "ask"),
    Code.STALLED: Label("No output", "ask"),
    Code.STARTING: Label("Starting", "busy"),
    Code.OUTSIDE: Label("Waiting for a result", "calm"),
    Code.WAIT_INTERRUPTED: Label("Wait unanswered", "ask"),
    Code.INTERRUPTED: Label("Turn interrupted", "ask"),
    Code.STOPPED: Label("Stopped", "off"),
    Code.OWNER_LEFT: Label("Owner has left", "ask"),
    Code.ERROR: Label("Error", "bad"),
    Code.ASLEEP: Label("Asleep", "off"),
    Code.WORKSPACE: Label("Workspace", "off"),
    Code.TURN_FAILED: Label("Turn failed", "bad"),
    Code.YOUR_TURN: Label("Your turn", "calm"),
    Code.WORKING: Label("Working", "busy"),
}
"""What a situation is called in a word, wherever it appears."""
NOT_STARTED_LABEL: Final = Label("Not started", "off")
STATE_LABELS: Final[Mapping[str, Label]] = {
    SessionState.CREATED: NOT_STARTED_LABEL,
    SessionState.STARTING: LABELS[Code.STARTING],
    SessionState.RUNNING: LABELS[Code.WORKING],
    SessionState.WAITING_FOR_INPUT: LABELS[Code.YOUR_TURN],
    SessionState.ERROR: LABELS[Code.ERROR],
    SessionState.COMPLETED: Label("Completed", "good"),
    SessionState.FAILED: LABELS[Code.GAVE_UP],
    SessionState.CANCELLED: Label("Cancelled", "off"),
}
HEADLINES: Final[Mapping[Code, str]] = {
    Code.PERMISSION: "The agent asks for permission",
    Code.HELD: "It is not known whether the agent received a prompt",
    Code.GAVE_UP: "The agent could not be started, and is not started again automatically",
    Code.INTERRUPTED: "The agent was interrupted during its turn",
    Code.OWNER_LEFT: "The owner of this session has left the team, so it does not start automatically",
    Code.WAIT_INTERRUPTED: "A wait ended without an answer",
    Code.OVERDUE: "A prompt has waited longer for the agent than a start should take",
    Code.STALLED: "The agent has not responded for a while",
    Code.CANCEL_IGNORED: "The agent was asked to cancel its turn, and continues",
    Code.ERROR: "The agent stopped with an error",
    Code.WORKTREE_MISSING: "The worktree of this session is gone and cannot be rebuilt",
    Code.CONTEXT_MISMATCH: "The agent loaded a conversation that is not the one shown here",
}
"""What happened, as the banner, the inbox and mail begin."""
AGENT_DIED: Final = "agent_died"
"""Error code of a session that was given up because its agents started and then died."""
AGENT_DIED_HEADLINE: Final = "The agent kept crashing, and is not restarted automatically"


@dataclass(frozen=True, slots=True)
class Situation:
    """What is going on, what to do next, and how it is shown."""

    code: Code
    level: Level
    text: str
    next_step: str = ""
    action: Action = ""
    """The buttons beside it; empty: none."""
    reason: IdleReason | None = None
    """Why nothing is happening; None: something is, or a later row knows."""
    label: Label | None = None
    """None: a later row knows."""
    at: datetime | None = None
    """The moment whose time of day ``text`` contains in UTC; a page shows it in the reader's time zone."""
    until: datetime | None = None
    """When it ends by itself."""


@dataclass(frozen=True, slots=True)
class SituationFacts:
    """What a situation is decided by."""

    session_state: str
    desired_state: str = DesiredState.RUNNING
    work_state: str = WorkState.IDLE
    agent_running: bool = False
    has_agent: bool = True
    """False: a workspace in which no agent is ever started."""
    workspace_ready: bool = False
    """The execution is ready, with or without an agent."""
    assessment: Assessment | None = None
    """None in lists, which do not load it."""
    task_end: TaskEnd = ""
    policy: str = ""
    policy_source: str = ""
    error_code: str = ""
    error_message: str = ""
    recovering: bool = False
    """The execution claims to run, and no supervisor has checked on it since it started."""
    supervised: bool = True
    """A supervisor is alive, or nothing waits for one."""
    starting: bool = False
    """A start is ordered."""
    start_reason: str = ""
    """A ``WaitReason``; empty: its start does not wait."""
    starts_before: int = 0
    """How many other sessions start before this one."""
    continuing: bool = False
    asleep: bool = False
    """Stopped because it was idle."""
    queued_prompts: int = 0
    overdue_prompts: int = 0
    held_prompts: int = 0
    interrupted_prompts: int = 0
    pending_permissions: int = 0
    waits_outside: bool = False
    wait_until: datetime | None = None
    """When the wait for an external result ends by itself."""
    owner_left: bool = False
    history: Mapping[str, int] | None = None
    """What the next prompt tells a new agent of the conversation (``Injection.facts``); None: nothing."""
    history_armed: bool = False
    """That agent is running, and waits for this prompt."""
    attempts: int = 0
    """Starts without success."""
    next_restart_at: datetime | None = None
    retrying: bool = False
    """A failed turn is about to be retried."""
    retry: Retry | None = None
    stalled_since: datetime | None = None
    """The open turn has been silent since then."""
    interrupted_wait: str | None = None
    """What was waited for and has not come; None: nothing, or the session has continued since."""
    wait_ended_at: datetime | None = None
    cancel_ignored_since: datetime | None = None
    """When the agent was asked to cancel the turn that it continues."""
    last_run_state: str = ""
    """State of the newest turn; empty: there was none."""
    capability_note: str = ""
    """Which claims of its agent proved false, in words."""

    @property
    def is_starting(self) -> bool:
        """A start is ordered or under way; one that waits for its back-off is not."""
        if self.session_state == SessionState.STARTING:
            return True
        return self.starting and self.session_state not in ENDED_STATES and self.next_restart_at is None

    @property
    def is_down(self) -> bool:
        """No agent is running or starting."""
        return not self.agent_running and not self.is_starting

    @property
    def is_resting(self) -> bool:
        """As ``is_down``, and its agent has not been seen moments ago; False where nobody has assessed it."""
        return self.assessment is not None and self.assessment.row > 2 and not self.is_starting


_Facts = SituationFacts
_Describe = Callable[[_Facts], Situation]
_Row = tuple[Callable[[_Facts], bool], _Describe]


def situation(facts: SituationFacts) -> Situation:
    """The first situation that holds; the last row always does."""
    found = next(describe(facts) for holds, describe in _ROWS if holds(facts))
    if not facts.capability_note or not _is_about_resuming(found, facts):
        return found
    return replace(found, next_step=f"{found.next_step} {facts.capability_note}".strip())


def idle_situation(facts: SituationFacts) -> Situation | None:
    """Why nothing is happening; None where something is happening, or nothing ever will."""
    if facts.session_state in TERMINAL_STATES or facts.task_end:
        return None
    rows = (describe(facts) for holds, describe in _ROWS if holds(facts))
    return next((row for row in rows if row.reason is not None), None)


def status_label(facts: SituationFacts) -> Label:
    """What the session is doing, in a word."""
    rows = (describe(facts) for holds, describe in _ROWS if holds(facts))
    return next(row.label for row in rows if row.label is not None)


def state_label(state: str) -> Label:
    """A session's state; an unknown one is shown as it is."""
    return STATE_LABELS.get(state, Label(state, "bad"))


_OTHER_ACTIONS: Final = frozenset({"", "review_prompts", "answer"})


def _is_about_resuming(found: Situation, facts: _Facts) -> bool:
    assessed = facts.assessment
    return assessed is not None and facts.is_resting and assessed.cause.row > 5 and found.action not in _OTHER_ACTIONS


TASK_ENDS: Final[Mapping[TaskEnd, Situation]] = {
    "archived": Situation(Code.OVER, "info", "This task is archived.", "Unarchive it to continue.", "unarchive"),
    "done": Situation(Code.OVER, "info", "This task is done.", "Reopen it to continue.", "reopen"),
    "cancelled": Situation(Code.OVER, "info", "This task is cancelled.", "Reopen it to continue.", "reopen"),
}
"""What stands above everything else on a task that takes no more work: a new session there would be refused."""
NOT_RESUMABLE: Final = "This agent doesn’t support resuming. Start a new session."
NOT_RESUMABLE_LONG: Final = "This agent cannot resume previous sessions. Create a new session."
NOT_RESUMABLE_WORKSPACE: Final = "Create new session to continue messaging."
NOT_OFFERED: Final = "resume_unsupported"
"""``error_code`` of a session whose agent has no means to restore a conversation."""
RESUME_HINT: Final = "Press “Resume session”, or send a prompt."
_POLICY_SOURCES: Final[Mapping[str, str]] = {
    PolicySource.SESSION: "this session’s own choice",
    PolicySource.TEAM: "the team’s choice",
    PolicySource.DEPLOYMENT: "the default for this installation",
}
_POLICIES: Final[Mapping[str, str]] = {
    Policy.WORKING: "only agents that were working, or have prompts queued, start automatically",
    Policy.ON_OPEN: "an agent starts when somebody opens its page or sends a prompt",
    Policy.MANUAL: "an agent starts only when somebody resumes it or sends a prompt",
}


def _plural(number: int, one: str, many: str) -> str:
    return one if number == 1 else many.format(number)


def _fixed(
    code: Code,
    level: Level,
    text: str,
    next_step: str = "",
    *,
    action: Action = "",
    reason: IdleReason | None = None,
) -> _Describe:
    made = Situation(code, level, text, next_step, action, reason, LABELS.get(code))
    return lambda _: made


def _because(reason: Reason) -> Callable[[_Facts], bool]:
    """A start would meet this, whatever else is true."""
    return lambda f: f.is_resting and f.assessment is not None and f.assessment.cause.resume_reason is reason


def _assessed(reason: Reason) -> Callable[[_Facts], bool]:
    return lambda f: f.is_resting and f.assessment is not None and f.assessment.resume_reason is reason


def _over(f: _Facts) -> Situation:
    label = state_label(f.session_state)
    if f.task_end:
        if f.session_state == SessionState.WAITING_FOR_INPUT and f.has_agent:
            label = Label("Idle", "off")  # it takes no prompt, so it is nobody's turn
        return replace(TASK_ENDS[f.task_end], label=label if f.has_agent else LABELS[Code.WORKSPACE])
    completed = f.session_state == SessionState.COMPLETED
    text = "This session is complete." if completed else "This session was cancelled."
    return Situation(Code.OVER, "info", text, "Create a new session to continue.", "new_session", label=label)


def _permission(f: _Facts) -> Situation:
    text = _plural(f.pending_permissions, f"{HEADLINES[Code.PERMISSION]}.", "The agent asks for permission {} times.")
    return Situation(
        Code.PERMISSION,
        "warning",
        text,
        "Allow or reject the request.",
        "answer",
        IdleReason.PERMISSION,
        LABELS[Code.PERMISSION],
    )


def _held(f: _Facts) -> Situation:
    text = _plural(
        f.held_prompts,
        f"{HEADLINES[Code.HELD]}. It was not sent again.",
        "It is not known whether the agent received {} prompts. They were not sent again.",
    )
    reason = IdleReason.IN_DOUBT if f.work_state != WorkState.WORKING else None
    return Situation(Code.HELD, "warning", text, "Send it again, or dismiss it.", "review_prompts", reason)


def _gave_up(f: _Facts) -> Situation:
    text = f"{HEADLINES[Code.GAVE_UP]}."
    if f.attempts > 1:
        text = f"The agent could not be started in {f.attempts} attempts, and is not started again automatically."
    if f.error_code == AGENT_DIED:
        text = f"{AGENT_DIED_HEADLINE}."
    step = f"{f.error_message} Fix the cause, then press “Try again”.".strip()
    return Situation(Code.GAVE_UP, "error", text, step, "try_again", IdleReason.GAVE_UP, LABELS[Code.GAVE_UP])


def _in_start_queue(code: Code, text: str, reason: IdleReason) -> _Describe:
    def describe(f: _Facts) -> Situation:
        before = _plural(f.starts_before, "One session is before it.", "{} sessions are before it.")
        step = "Wait, or stop a session that you do not need."
        step = f"{before} {step}" if f.starts_before else step
        return Situation(code, "info", text, step, "", reason, LABELS[Code.START_QUEUE])

    return describe


def _program(f: _Facts) -> Situation:
    text = f.error_message or "The agent cannot be started."
    return Situation(
        Code.PROGRAM, "error", text, RETRY_SENTENCE, "try_again", IdleReason.ERROR, until=f.next_restart_at
    )


def _backing_off(f: _Facts) -> Situation:
    at = f"{f.next_restart_at:%H:%M:%S} UTC" if f.next_restart_at else ""
    text = f"The agent ended unexpectedly. It restarts at {at} (restart {f.attempts + 1})."
    if f.session_state == SessionState.ERROR:
        text = f"The last start failed. The next one is at {at} (attempt {f.attempts + 1})."
    step = f"{f.error_message} “Try again” does so now.".strip()
    return Situation(
        Code.BACKING_OFF,
        "warning",
        text,
        step,
        "try_again",
        IdleReason.BACKING_OFF,
        LABELS[Code.BACKING_OFF],
        f.next_restart_at,
        f.next_restart_at,
    )


def _not_resumable(f: _Facts) -> Situation:
    step = NOT_RESUMABLE_WORKSPACE if f.workspace_ready else NOT_RESUMABLE_LONG
    return Situation(Code.NOT_RESUMABLE, "error", NOT_RESUMABLE, step, "new_session")


def _token_rejected(f: _Facts) -> Situation:
    cause = f.assessment.cause if f.assessment else None
    told = cause is not None and cause.strategy is Strategy.HISTORY
    how = _history_estimate(f) if told else "starts a new conversation and does not know what was said before"
    code: Final = Code.TOKEN_REJECTED
    if cause is not None and cause.token_strange:
        text = (
            "This conversation belongs to another agent profile, agent type or directory, so this agent does not "
            f"get it. With your next prompt the agent {how}."
        )
        step = "Nothing was deleted. Restore the previous profile or directory to continue the conversation."
        return Situation(code, "warning", text, step, "choose_conversation")
    why = "cannot restore conversations" if f.error_code == NOT_OFFERED else "no longer knows this conversation"
    text = f"The agent {why}. With your next prompt it {how}."
    return Situation(code, "warning", text, "You can try the old conversation again.", "choose_conversation")


def _history_estimate(f: _Facts) -> str:
    """What the next prompt costs, before it is sent."""
    told = f.history
    if not told:
        return "is told what was said so far"
    left_out = f", {told['entries_cut']} older entries are left out" if told.get("entries_cut") else ""
    return f"is told what was said so far (about {told['estimated_tokens']:,} tokens{left_out})"


def _overdue(f: _Facts) -> Situation:
    text = _plural(
        f.overdue_prompts,
        f"{HEADLINES[Code.OVERDUE]}.",
        "{} prompts have waited longer for the agent than a start should take.",
    )
    why = f.error_message or "Kandev keeps trying."
    step = f"{why} The prompt stays in the queue; you can withdraw it."
    return Situation(Code.OVERDUE, "warning", text, step, "try_again" if f.is_resting else "")


def _retrying(f: _Facts) -> Situation:
    text = f.retry.said if f.retry else "The turn is retried soon."
    step = f.retry.message if f.retry else ""
    return Situation(Code.RETRYING, "warning", text, step, "cancel", None, LABELS[Code.RETRYING])


def _cancel_ignored(f: _Facts) -> Situation:
    text = f"The agent was asked to cancel its turn at {f.cancel_ignored_since:%H:%M:%S} UTC, and continues it."
    step = "Wait until the turn ends, or stop the agent. Its conversation and files are kept."
    return Situation(Code.CANCEL_IGNORED, "warning", text, step, "stop", at=f.cancel_ignored_since)


def _stalled(f: _Facts) -> Situation:
    text = f"The agent has not responded since {f.stalled_since:%H:%M:%S} UTC."
    step = "It may still be working; nothing was stopped. This notice disappears when the agent next responds."
    return Situation(Code.STALLED, "info", text, step, "cancel", at=f.stalled_since)


def _outside(f: _Facts) -> Situation:
    text = "The session is waiting for an external result."
    step = "It continues automatically when the result arrives. You can also end the wait."
    return Situation(Code.OUTSIDE, "", text, step, "", IdleReason.OUTSIDE, LABELS[Code.OUTSIDE], until=f.wait_until)


def _wait_interrupted(f: _Facts) -> Situation:
    what = f"“{f.interrupted_wait}”" if f.interrupted_wait else "an external result"
    text = f"The wait for {what} ended without an answer at {f.wait_ended_at:%H:%M:%S} UTC."
    step = "Wait again with a new key, or continue without it. The agent is told with its next prompt."
    return Situation(Code.WAIT_INTERRUPTED, "warning", text, step, "wait", at=f.wait_ended_at)


def _interrupted(f: _Facts) -> Situation:
    text = _plural(
        f.interrupted_prompts,
        "A prompt was interrupted while the agent worked on it.",
        "{} prompts were interrupted while the agent worked on them.",
    )
    return Situation(Code.INTERRUPTED, "warning", text, "Continue it, send it again, or dismiss it.", "review_prompts")


def _stopped(f: _Facts) -> Situation:
    if not f.is_down:
        return Situation(Code.STOPPED, "", "The agent is being stopped.", "Wait a moment.", "", IdleReason.STOPPED)
    text = "This agent was stopped. It does not start automatically."
    label = LABELS[Code.STOPPED] if f.session_state == SessionState.WAITING_FOR_INPUT else None
    return Situation(Code.STOPPED, "info", text, RESUME_HINT, "resume", IdleReason.STOPPED, label)


def _error(f: _Facts) -> Situation:
    text = f.error_message or f"{HEADLINES[Code.ERROR]}."
    step = "Nothing is retried automatically. Fix the cause, then try again."
    return Situation(Code.ERROR, "error", text, step, "try_again", IdleReason.ERROR, LABELS[Code.ERROR])


def _queued(f: _Facts) -> Situation:
    text = _plural(f.queued_prompts, "A prompt waits for the agent.", "{} prompts wait for the agent.")
    if f.is_resting:
        return Situation(Code.QUEUED, "info", text, "It is delivered when the agent runs.", "resume")
    return Situation(Code.QUEUED, "info", text, "Prompts are delivered in order.")


def _history_armed(f: _Facts) -> Situation:
    text = f"The agent has started a new conversation. With your next prompt it {_history_estimate(f)}."
    return Situation(Code.HISTORY_ARMED, "info", text)


def _asleep(f: _Facts) -> Situation:
    label = LABELS[Code.ASLEEP] if f.session_state == SessionState.WAITING_FOR_INPUT else None
    text = "The agent is asleep because it was idle."
    step = "Your next prompt wakes it. Its conversation and files are kept."
    return Situation(Code.ASLEEP, "info", text, step, "resume", IdleReason.ASLEEP, label)


def _workspace(f: _Facts) -> Situation:
    label = LABELS[Code.WORKSPACE] if f.session_state == SessionState.WAITING_FOR_INPUT else None
    text = "This session is a workspace: no agent runs in it."
    step = "Other sessions of the task, or the nodes of a workflow, work in its directory."
    return Situation(Code.WORKSPACE, "info" if f.is_resting else "", text, step, label=label)


def _not_running(code: Code, reason: IdleReason | None, step: Callable[[_Facts], str]) -> _Describe:
    def describe(f: _Facts) -> Situation:
        told = f" With your next prompt it {_history_estimate(f)}." if f.history else ""
        return Situation(code, "info", f"The agent is not running.{told}", step(f), "resume", reason)

    return describe


def _policy_step(f: _Facts) -> str:
    who = _POLICY_SOURCES.get(f.policy_source, "a choice")
    how = _POLICIES.get(f.policy, "it does not start automatically")
    return f"Recovery policy “{f.policy}” ({who}): {how}. {RESUME_HINT}"


def waits_by_policy(f: SituationFacts) -> bool:
    """Whether the recovery policy keeps an agent from being started automatically."""
    if f.agent_running or f.assessment is None or not f.assessment.needs_resume or f.policy not in set(Policy):
        return False
    return not policy_wants_agent(f.policy, f.work_state, f.queued_prompts > 0, boot=False)


def _turn_failed(f: _Facts) -> bool:
    return f.session_state == SessionState.WAITING_FOR_INPUT and f.last_run_state == RunState.FAILED


def _is_your_turn(f: _Facts) -> bool:
    return f.agent_running and f.work_state != WorkState.WORKING and not f.queued_prompts


_SUPERVISOR_HINT: Final = "Ask an administrator to start one (`manage.py supervise`, or `serve`)."
_ROWS: Final[tuple[_Row, ...]] = (
    (
        lambda f: f.assessment is not None and f.assessment.resume_reason is Reason.DAMAGED_ROW,
        lambda f: Situation(
            Code.DAMAGED,
            "error",
            "This session’s record is damaged. An administrator needs to repair it.",
            f.error_message,
        ),
    ),
    (lambda f: bool(f.task_end) or f.session_state in TERMINAL_STATES, _over),
    (
        lambda f: f.recovering and not f.supervised,
        lambda _: Situation(
            Code.SUPERVISOR_STARTING,
            "info",
            "The server has just started, and no supervisor is running yet. What you see may be out of date.",
            f"Wait a moment. If this stays: {_SUPERVISOR_HINT}",
            reason=IdleReason.NO_SUPERVISOR,
            label=LABELS[Code.RECOVERING],
        ),
    ),
    (
        lambda f: f.recovering,
        _fixed(
            Code.RECOVERING,
            "info",
            "The server has just started and is reconnecting to this session. What you see may be out of date.",
            "Wait a moment.",
            reason=IdleReason.RECOVERING,
        ),
    ),
    (
        # Before every start: a prompt orders one, and nothing can be started there until the machine answers.
        lambda f: f.error_code == UNREACHABLE,
        _fixed(
            Code.UNREACHABLE,
            "warning",
            "The agent’s machine does not answer. The agent may still be working; nothing was stopped.",
            "Kandev keeps trying. What the agent did meanwhile appears when the machine answers. "
            "If this lasts, check the machine.",
            reason=IdleReason.UNREACHABLE,
        ),
    ),
    (
        lambda f: f.error_code in {"disk_full", "disk_failing"},
        lambda f: Situation(Code.DISK, "error", f.error_message, "Nothing that is shown here is lost."),
    ),
    (lambda f: f.pending_permissions > 0, _permission),
    (lambda f: f.held_prompts > 0, _held),
    (
        _because(Reason.WORKTREE_MISSING),
        lambda f: Situation(
            Code.WORKTREE_MISSING, "error", f"{HEADLINES[Code.WORKTREE_MISSING]}.", f.error_message, "new_session"
        ),
    ),
    (lambda f: f.session_state == SessionState.FAILED or _assessed(Reason.GAVE_UP)(f), _gave_up),
    (
        _because(Reason.CONTEXT_MISMATCH),
        _fixed(
            Code.CONTEXT_MISMATCH,
            "error",
            f"{HEADLINES[Code.CONTEXT_MISMATCH]}. Choose how to continue.",
            "Accept the loaded conversation, or start fresh. Nothing was deleted.",
            action="choose_conversation",
        ),
    ),
    (
        lambda f: not f.supervised and f.desired_state != DesiredState.STOPPED,
        _fixed(
            Code.NO_SUPERVISOR,
            "warning",
            "No supervisor is running, so requests are not carried out.",
            _SUPERVISOR_HINT,
            reason=IdleReason.NO_SUPERVISOR,
        ),
    ),
    (
        lambda f: f.start_reason == WaitReason.CAPACITY,
        _in_start_queue(
            Code.CAPACITY,
            "Too many agents run on this executor. This one starts when there is room.",
            IdleReason.CAPACITY,
        ),
    ),
    (
        lambda f: f.start_reason == WaitReason.TURN,
        _in_start_queue(
            Code.START_QUEUE, "Many agents are being started. This one waits for its turn.", IdleReason.TURN
        ),
    ),
    (lambda f: f.is_resting and f.error_code in NEEDS_PERSON_CODES, _program),
    (lambda f: f.is_down and f.next_restart_at is not None and f.error_code not in NEEDS_PERSON_CODES, _backing_off),
    (_because(Reason.NOT_RESUMABLE), _not_resumable),
    (
        _because(Reason.MISSING_RESUME_TOKEN),
        _fixed(
            Code.MISSING_RESUME_TOKEN,
            "error",
            "Kandev never learned the agent’s conversation id, so this conversation cannot be resumed.",
            "A fresh start keeps the workspace; the agent does not know what was said.",
            action="fresh_start",
        ),
    ),
    (
        lambda f: f.is_resting and f.assessment is not None and token_was_rejected(f.assessment),
        _token_rejected,
    ),
    (lambda f: f.overdue_prompts > 0, _overdue),
    (lambda f: f.retrying and not f.is_down, _retrying),
    (lambda f: f.cancel_ignored_since is not None, _cancel_ignored),
    (lambda f: f.stalled_since is not None, _stalled),
    (
        lambda f: f.is_starting,
        _fixed(
            Code.STARTING,
            "info",
            "The agent is starting.",
            "Prompts you send now are queued.",
            reason=IdleReason.STARTING,
        ),
    ),
    (lambda f: f.waits_outside, _outside),
    (lambda f: f.interrupted_wait is not None and not f.queued_prompts, _wait_interrupted),
    (lambda f: f.continuing, _fixed(Code.CONTINUING, "info", "The agent was interrupted and was asked to continue.")),
    (lambda f: f.interrupted_prompts > 0, _interrupted),
    (lambda f: f.desired_state == DesiredState.STOPPED and f.session_state != SessionState.CREATED, _stopped),
    (
        lambda f: f.owner_left and not f.agent_running,
        lambda _: Situation(
            Code.OWNER_LEFT,
            "info",
            f"{HEADLINES[Code.OWNER_LEFT]}.",
            "Any member of the team can resume it.",
            "resume",
            IdleReason.OWNER_LEFT,
        ),
    ),
    (lambda f: f.session_state == SessionState.ERROR, _error),
    (lambda f: f.queued_prompts > 0, _queued),
    (lambda f: f.history_armed and not f.is_resting, _history_armed),
    (lambda f: f.asleep and f.is_down, _asleep),
    (lambda f: not f.has_agent, _workspace),
    (waits_by_policy, _not_running(Code.POLICY, IdleReason.POLICY, _policy_step)),
    (
        lambda f: f.is_resting and f.assessment is not None and f.assessment.needs_resume,
        _not_running(Code.RESTART_DUE, IdleReason.NEXT_LOOK, lambda _: "Kandev starts it automatically."),
    ),
    (lambda f: f.is_resting, _not_running(Code.NOT_RUNNING, None, lambda _: RESUME_HINT)),
    (
        _turn_failed,
        lambda f: Situation(
            Code.TURN_FAILED,
            "",
            "The last turn failed.",
            "Read the error, then send a prompt to continue.",
            reason=IdleReason.YOUR_TURN if _is_your_turn(f) else None,
            label=LABELS[Code.TURN_FAILED],
        ),
    ),
    (
        _is_your_turn,
        lambda f: Situation(
            Code.YOUR_TURN,
            "",
            "The agent is idle.",
            "Send a prompt to continue.",
            reason=IdleReason.YOUR_TURN,
            label=state_label(f.session_state),
        ),
    ),
    (
        lambda f: f.session_state == SessionState.RUNNING,
        _fixed(Code.WORKING, "", "The agent is working.", "Prompts you send now are queued."),
    ),
    (
        lambda _: True,
        lambda f: Situation(Code.OTHER, "", "", label=state_label(f.session_state)),
    ),
)
