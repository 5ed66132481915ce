"""Types and constants of situations: codes, labels, headlines, and the facts that decide them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

from sessions_app.agents.rules.agent_programs import LOGGED_OUT
from sessions_app.kernel.rules.states import ENDED_STATES, DesiredState, RunState, SessionState, TaskEnd, WorkState
from sessions_app.recovery.rules.resumability import Assessment
from sessions_app.turns.rules.transient_errors import Retry

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
    "go_on",
    "go_on_or_cancel",
    "send_again",
    "continue_turn",
    "change_budget",
    "open_team_budget",
]


@dataclass(frozen=True, slots=True)
class Label:
    """A short name and the tone of its pill."""

    text: str
    tone: str = "calm"


def humanize_code(code: str) -> str:
    """Return a code in words: ``agent_gone`` becomes ``agent gone``."""
    return code.replace("_", " ")


class Code(StrEnum):
    """The situations, in the order in which they are checked."""

    DAMAGED = "damaged"
    OVER = "over"
    HOST_UNATTENDED = "host_unattended"
    SUPERVISOR_STARTING = "supervisor_starting"
    RECOVERING = "recovering"
    UNREACHABLE = "unreachable"
    DISK = "disk"
    PERMISSION = "permission"
    QUESTION = "question"
    HELD = "held"
    WORKTREE_MISSING = "worktree_missing"
    GAVE_UP = "gave_up"
    CONTEXT_MISMATCH = "context_mismatch"
    NO_SUPERVISOR = "no_supervisor"
    CAPACITY = "capacity"
    HOST = "host"
    HOST_LOST = "host_lost"
    START_QUEUE = "start_queue"
    PLACEMENT = "placement"
    PROGRAM = "program"
    BACKING_OFF = "backing_off"
    NOT_RESUMABLE = "not_resumable"
    MISSING_RESUME_TOKEN = "missing_resume_token"  # noqa: S105  (a reason, no secret)
    TOKEN_REJECTED = "token_rejected"  # noqa: S105
    OVERDUE = "overdue"
    SUSPENDED = "suspended"
    BUDGET = "budget"
    RETRYING = "retrying"
    CANCEL_IGNORED = "cancel_ignored"
    OWN_WAIT = "own_wait"
    STALLED = "stalled"
    STARTING = "starting"
    OUTSIDE = "outside"
    WAIT_INTERRUPTED = "wait_interrupted"
    CONTINUING = "continuing"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"
    OWNER_LEFT = "owner_left"
    ERROR = "error"
    CUT_OFF = "cut_off"
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
    QUESTION = "question"
    OUTSIDE = "outside"
    GAVE_UP = "gave_up"
    STOPPED = "stopped"
    OWNER_LEFT = "owner_left"
    CAPACITY = "capacity"
    HOST = "host"
    TURN = "turn"
    PLACEMENT = "placement"
    NO_SUPERVISOR = "no_supervisor"
    STARTING = "starting"
    BACKING_OFF = "backing_off"
    UNREACHABLE = "unreachable"
    HOST_UNATTENDED = "host_unattended"
    ERROR = "error"
    IN_DOUBT = "in_doubt"
    ASLEEP = "asleep"
    POLICY = "policy"
    NEXT_LOOK = "next_look"
    SUSPENDED = "suspended"
    BUDGET = "budget"
    YOUR_TURN = "your_turn"


LABELS: Final[Mapping[Code, Label]] = {
    Code.RECOVERING: Label("Reconnecting", "busy"),
    Code.UNREACHABLE: Label("Unknown", "ask"),
    Code.HOST_UNATTENDED: Label("Unreachable", "ask"),
    Code.PERMISSION: Label("Asks for permission", "ask"),
    Code.QUESTION: Label("Asks a question", "ask"),
    Code.HELD: Label("Prompt in doubt", "ask"),
    Code.GAVE_UP: Label("Given up", "bad"),
    Code.START_QUEUE: Label("Waiting to start", "busy"),
    Code.BACKING_OFF: Label("Restart scheduled", "ask"),
    Code.OVERDUE: Label("Prompt overdue", "ask"),
    Code.SUSPENDED: Label("Suspended", "ask"),
    Code.BUDGET: Label("Over budget", "ask"),
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
"""The short name of a situation, wherever it appears."""

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
    Code.QUESTION: "The agent asks a question",
    Code.HELD: "It is not known whether the agent received a prompt",
    Code.GAVE_UP: "The agent could not be started, and is not started again automatically",
    Code.INTERRUPTED: "The agent was interrupted during its turn",
    Code.OWNER_LEFT: "The owner of this session has left the team, so it does not start automatically",
    Code.WAIT_INTERRUPTED: "A wait ended without an answer",
    Code.OVERDUE: "A prompt has waited longer for the agent than a start should take",
    Code.SUSPENDED: "The agent’s usage limit is reached",
    Code.BUDGET: "A budget holds the next prompt back",
    Code.STALLED: "The agent has not responded for a while",
    Code.CANCEL_IGNORED: "The agent was asked to cancel its turn, and continues",
    Code.ERROR: "The agent stopped with an error",
    Code.WORKTREE_MISSING: "The worktree of this session is gone and cannot be rebuilt",
    Code.CONTEXT_MISMATCH: "The agent loaded a conversation that is not the one shown here",
}
"""What happened: the beginning of banner, inbox item and mail."""

DISK_CODES: Final = frozenset({"disk_full", "disk_failing"})
"""Error codes of a session whose agentctl cannot write its journal: the agent runs, but takes no prompts."""
AGENT_DIED: Final = "agent_died"
"""Error code of a session that was given up because its agents started and then died."""

AGENT_DIED_HEADLINE: Final = "The agent kept crashing, and is not restarted automatically"


@dataclass(frozen=True, slots=True)
class Situation:
    """What is happening in a session, what to do next, and how to show it."""

    code: Code
    level: Level
    text: str
    next_step: str = ""
    action: Action = ""
    """Which buttons to show beside it; empty: none."""
    reason: IdleReason | None = None
    """Why nothing is happening; None: something is happening, or a later row of the table says it."""
    label: Label | None = None
    """None: a later row of the table has the label."""
    at: datetime | None = None
    """The moment whose time of day ``text`` contains in UTC; a page shows it in the reader's time zone."""
    until: datetime | None = None
    """When the situation ends automatically."""


@dataclass(frozen=True, slots=True)
class SituationFacts:
    """The facts that decide a situation."""

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
    unattended_host: str = ""
    """The name of the host that alone reaches its agent, if that has no supervisor."""
    supervised: bool = True
    """A supervisor is alive, or nothing waits for one."""
    starting: bool = False
    """A start is requested."""
    opens_workspace: bool = False
    """The start in progress opens the workspace alone, without an agent."""
    load_limit: float = 0.0
    """Seconds that the agent has to load its conversation in the start that is in progress; 0: it loads none."""
    load_since: datetime | None = None
    """When the agent was asked to load it; None: it has not been asked yet."""
    start_reason: str = ""
    """A ``WaitReason``; empty: its start does not wait."""
    start_host: str = ""
    """The host that takes no new sessions, if its start waits for that; empty in lists."""
    starts_before: int = 0
    """How many other sessions start before this one."""
    start_text: str = ""
    """What the start waits for, if ``start_reason`` is ``placement`` or ``launch``."""
    continuing: bool = False
    asleep: bool = False
    """Stopped because it was idle."""
    queued_prompts: int = 0
    overdue_prompts: int = 0
    held_prompts: int = 0
    interrupted_prompts: int = 0
    pending_permissions: int = 0
    pending_questions: int = 0
    waits_outside: bool = False
    wait_until: datetime | None = None
    """When the wait for an external result expires."""
    background_process_count: int = 0
    """How many processes turns of the running agent have left."""
    background_is_current: bool = True
    """False: it is unknown which of them still run."""
    background_ends: bool = False
    """Whether they end when the session falls asleep, instead of keeping it awake."""
    owner_left: bool = False
    history: Mapping[str, int | None] | None = None
    """The history that the next prompt carries for a new agent (``Injection.facts``); None: none.

    A count is None as long as it is not known.
    """
    history_armed: bool = False
    """That agent is running, and waits for this prompt."""
    attempts: int = 0
    """Starts without success."""
    next_restart_at: datetime | None = None
    retrying: bool = False
    """A failed turn is about to be retried."""
    retry: Retry | None = None
    waits_by_itself: bool = False
    """The agent has announced in its open turn that it waits by itself; False in lists."""
    waits_by_itself_until: datetime | None = None
    """When it goes on; None: it does not say so."""
    suspended: bool = False
    """Its usage limit is reached, or its provider is down."""
    suspension_reason: str = ""
    """The code of the limit or the outage."""
    suspended_until: datetime | None = None
    """When the session goes on by itself; None: not known, or a list did not load it."""
    suspension_message: str = ""
    """What the agent said about the limit."""
    continuation: str = ""
    """A ``Continuation``: what then happens to the turn that the limit has ended; empty: nothing, or not loaded."""
    cut_off: bool = False
    """A limit has ended the newest turn and is over, and nothing continues it; False in lists."""
    cut_off_reason: str = ""
    """The code of the limit or the outage that has ended that turn; empty in lists."""
    cut_off_has_worked: bool = False
    """The agent had used a tool in that turn."""
    over_budget: bool = False
    """A budget holds its next prompt back."""
    budget_sentence: str = ""
    """Which one and why; empty in lists."""
    budget_end: str = ""
    """What ends that; empty in lists."""
    budget_action: Action = ""
    """Where the budget can be changed; empty in lists, and where that does not help."""
    stalled_since: datetime | None = None
    """The open turn has been silent since then."""
    interrupted_wait: str | None = None
    """What a wait that ended without an answer was for; None: nothing, or the session has continued since."""
    wait_ended_at: datetime | None = None
    cancel_ignored_since: datetime | None = None
    """When the agent was asked to cancel the turn that it continues."""
    last_run_state: str = ""
    """State of the newest turn; empty: there was none."""
    works_alone: bool = False
    """The newest turn is open, and the agent began it without a prompt."""
    last_run_reason: str = ""
    """Why the newest turn ended: its error code, if it failed."""
    capability_note: str = ""
    """Which claims of its agent proved false, in words."""

    @property
    def is_starting(self) -> bool:
        """Whether a start is requested or in progress, and does not wait for its back-off."""
        if self.session_state == SessionState.STARTING:
            return True
        return self.starting and self.session_state not in ENDED_STATES and self.next_restart_at is None

    @property
    def is_down(self) -> bool:
        """Whether no agent is running or starting."""
        return not self.agent_running and not self.is_starting

    @property
    def turn_wants_login(self) -> bool:
        """Whether the newest turn failed because the agent was not logged in, and nothing has followed it."""
        is_over = self.session_state == SessionState.WAITING_FOR_INPUT and self.last_run_state == RunState.FAILED
        return is_over and self.last_run_reason == LOGGED_OUT

    @property
    def is_resting(self) -> bool:
        """Whether no agent is running or starting, nor was seen a moment ago. False without an assessment."""
        return self.assessment is not None and self.assessment.is_at_rest and not self.is_starting


def state_label(state: str) -> Label:
    """Return the label of a session's state; an unknown state is shown as it is."""
    return STATE_LABELS.get(state, Label(state, "bad"))


TASK_ENDS: Final[Mapping[TaskEnd, Situation]] = {
    "archived": Situation(Code.OVER, "info", "This task is archived.", "Unarchive it to continue.", "unarchive"),
    "done": Situation(Code.OVER, "info", "This task is done.", "Reopen it to continue.", "reopen"),
    "cancelled": Situation(Code.OVER, "info", "This task is cancelled.", "Reopen it to continue.", "reopen"),
}
"""The situation of a task that accepts no more work. It hides all others, because a new session would be refused."""
