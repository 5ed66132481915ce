"""The words for people: what states, receipts and error codes are called on the pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from executors_app.domain import ExecutorStatus
from sessions_app.domain.attention import AttentionKind
from sessions_app.domain.recovery_facts import UNREACHABLE, Policy
from sessions_app.domain.states import SessionState, TaskState, WorkState
from sessions_app.domain.status import DerivedStatus
from sessions_app.domain.tokens import WaitKind
from sessions_app.models import ContinuityReceipt


@dataclass(frozen=True, slots=True)
class Word:
    """A word and the tone it is shown in: calm, busy, ask, good, bad or off."""

    text: str
    tone: str = "calm"


TASK_STATES: Final[Mapping[str, Word]] = {
    TaskState.TODO: Word("To do", "off"),
    TaskState.IN_PROGRESS: Word("In progress", "busy"),
    TaskState.REVIEW: Word("Review", "ask"),
    TaskState.DONE: Word("Done", "good"),
    TaskState.FAILED: Word("Failed", "bad"),
    TaskState.CANCELLED: Word("Cancelled", "off"),
}

SESSION_STATES: Final[Mapping[str, Word]] = {
    SessionState.CREATED: Word("Not started", "off"),
    SessionState.STARTING: Word("Starting", "busy"),
    SessionState.RUNNING: Word("Working", "busy"),
    SessionState.WAITING_FOR_INPUT: Word("Your turn", "calm"),
    SessionState.ERROR: Word("Error", "bad"),
    SessionState.COMPLETED: Word("Completed", "good"),
    SessionState.FAILED: Word("Failed", "bad"),
    SessionState.CANCELLED: Word("Cancelled", "off"),
}

EXECUTOR_STATUSES: Final[Mapping[str, Word]] = {
    ExecutorStatus.STARTING: Word("Starting", "busy"),
    ExecutorStatus.READY: Word("Ready", "good"),
    ExecutorStatus.ERROR: Word("Error", "bad"),
    ExecutorStatus.STOPPED: Word("Stopped", "off"),
}
RECONNECTING: Final = Word("Reconnecting", "busy")
UNKNOWN: Final = Word("Unknown", "ask")
WORKSPACE_ONLY: Final = Word("Workspace", "off")
"""A session without an agent at rest: nobody can give it a prompt, so it is nobody’s turn."""
_STOPPED_BECAUSE: Final[Mapping[str, Word]] = {
    "idle": Word("Asleep", "off"),
    "new": Word("Not started", "off"),
}

_STANDINGS: Final[Mapping[str, str]] = {"kept": "good", "not kept": "bad", "not claimed": "off"}

DERIVED: Final[Mapping[str, Word]] = {
    DerivedStatus.INTERRUPTED_STARTUP: Word("Interrupted at work", "bad"),
    DerivedStatus.INTERRUPTED_WAITING: Word("Interrupted while it waited", "bad"),
    DerivedStatus.WAITING: Word("Waiting", "ask"),
    DerivedStatus.RUNNING: Word("Running", "busy"),
    DerivedStatus.IDLE: Word("Idle", "off"),
}
"""The derived status of a session, in the order in which it is decided."""
WORK_STATES: Final[Mapping[str, Word]] = {
    WorkState.IDLE: Word("At rest", "off"),
    WorkState.WORKING: Word("At work", "busy"),
    WorkState.DONE: Word("Work done", "good"),
}

TOOL_STATUSES: Final[Mapping[str, Word]] = {
    "pending": Word("Waiting", "calm"),
    "in_progress": Word("Running", "busy"),
    "completed": Word("Done", "good"),
    "failed": Word("Failed", "bad"),
    "interrupted": Word("Interrupted", "bad"),
    "cancelled": Word("Cancelled", "off"),
}

DELIVERY_STATES: Final[Mapping[str, Word]] = {
    "pending": Word("On its way", "busy"),
    "sent": Word("Arrived", "good"),
    "failed": Word("Failed", "bad"),
    "dropped": Word("Settled before", "off"),
}


@dataclass(frozen=True, slots=True)
class PolicyWord:
    """A recovery policy in a few words, and in a sentence."""

    text: str
    explanation: str


POLICIES: Final[Mapping[str, PolicyWord]] = {
    Policy.AUTO: PolicyWord("Everything that was up", "Every agent that ran is brought back, those at work first."),
    Policy.WORKING: PolicyWord("Only who was at work", "Agents at work, or with prompts waiting, are brought back."),
    Policy.ON_OPEN: PolicyWord("When somebody opens it", "An agent is brought back by opening its page or a prompt."),
    Policy.MANUAL: PolicyWord("By hand", "Only “Resume session” or a prompt brings an agent back."),
}
ATTENTION_KINDS: Final[Mapping[str, Word]] = {
    AttentionKind.GAVE_UP: Word("Given up", "bad"),
    AttentionKind.ERROR: Word("Error", "bad"),
    AttentionKind.PERMISSION: Word("Asks for permission", "ask"),
    AttentionKind.HELD: Word("Prompt in doubt", "ask"),
    AttentionKind.CUT_SHORT: Word("Turn cut short", "ask"),
    AttentionKind.OWNER_LEFT: Word("Owner has left", "ask"),
    AttentionKind.WAIT_INTERRUPTED: Word("Wait interrupted", "ask"),
    AttentionKind.OVERDUE: Word("Waits for an agent", "ask"),
    AttentionKind.WORKFLOW: Word("Workflow", "ask"),
    AttentionKind.STALLED: Word("Silent", "ask"),
    AttentionKind.CANCEL_IGNORED: Word("Ignores a cancel", "ask"),
    AttentionKind.RECEIPT: Word("Memory lost", "ask"),
    AttentionKind.UNPROVEN: Word("Memory unproven", "calm"),
    AttentionKind.IDLE: Word("Needs a look", "calm"),
}
"""What may need somebody, the most pressing first."""

PROMPT_STATES: Final[Mapping[str, str]] = {
    "queued": "Waiting for its turn",
    "sending": "On its way",
    "accepted": "The agent has it",
    "delivered": "The agent works on it",
    "held": "It is not known whether the agent got this.",
    "interrupted": "The agent was interrupted while it worked on this.",
}

_RECEIPTS: Final[Mapping[str, Word]] = {
    "reattached": Word("Reattached: the same process", "good"),
    "resumed": Word("Resumed: the agent took up its own conversation", "good"),
    "loaded": Word("Loaded: the agent read its conversation back", "good"),
    "injected": Word("New conversation, told what was said before", "ask"),
    "workspace_only": Word("Workspace only: no agent is running", "calm"),
    "fresh": Word("Started fresh: the agent knows nothing of what was said before", "ask"),
    "failed": Word("Could not be resumed", "bad"),
}
_NOT_STARTED: Final[Mapping[str, Word]] = {
    "program_missing": Word("Not started: the agent’s program is not installed", "bad"),
    "auth_required": Word("Not started: the agent is not logged in", "bad"),
}
FIRST_FAILED: Final = Word("Could not be started", "bad")
_VERIFIED: Final[Mapping[str, str]] = {
    "same_process": "verified",
    "replay": "verified by what it replayed",
    "first_turn": "its first turn showed it",
    "quoted": "it quoted your last request",
    "unproven": "unproven",
    "pending": "not proven yet, the next turn will tell",
    "none": "not verified",
}
_UNPROVEN: Final[Mapping[str, str]] = {
    "resumed": "Resumed: the agent says that it has its conversation",
    "loaded": "Loaded: the agent says that it has its conversation",
}
"""No more than is known, where nothing shows that the agent has its context."""
_NOTHING_TO_VERIFY: Final = frozenset({"workspace_only", "fresh", "failed"})


OUTCOMES: Final[Mapping[str, Word]] = {
    "reattached": Word("reattached", "good"),
    "resumed": Word("resumed", "good"),
    "loaded": Word("loaded", "good"),
    "injected": Word("told what was said", "ask"),
    "fresh": Word("started fresh", "ask"),
    "workspace_only": Word("workspace only", "calm"),
    "failed": Word("failed", "bad"),
    "skipped": Word("without a receipt", "off"),
}
"""What the rows of a sweep came to, in the order in which they are shown."""
SWEEP_TRIGGERS: Final[Mapping[str, str]] = {
    "boot": "At the start of a supervisor",
    "command": "By command",
    "reconcile": "In the loop",
}
_DECISIONS: Final[Mapping[str, str]] = {
    "none": "Nothing to do",
    "reattach": "Reattach to the agent",
    "resume": "Resume the agent",
    "start_workspace": "Start the workspace",
    "stop": "Stop it",
}

FIRST_START: Final = Word("First start", "good")
NOTHING_SAID_BEFORE: Final = Word("New conversation", "calm")


def receipt_word(receipt: ContinuityReceipt, *, is_first: bool = False, said_before: bool = True) -> Word:
    """A receipt in plain words: ``Reattached: the same process (verified)``.

    A fresh start is a loss only where something was ``said_before``; the first one of a session never is.
    """
    if receipt.kind == "fresh" and not receipt.evidence.get("completed_turns"):
        if is_first:
            return FIRST_START
        if not said_before:
            return NOTHING_SAID_BEFORE
    word = _RECEIPTS.get(receipt.kind, Word(receipt.kind))
    if receipt.kind == "failed":
        return _NOT_STARTED.get(receipt.reason) or (FIRST_FAILED if is_first or not said_before else word)
    if receipt.kind in _NOTHING_TO_VERIFY:
        return word
    proof = receipt.proof
    if proof == "unproven":
        return Word(f"{_UNPROVEN.get(receipt.kind, word.text)} ({_VERIFIED[proof]})", "calm")
    tone = word.tone if proof not in ("none", "pending") else "ask"
    return Word(f"{word.text} ({_VERIFIED.get(proof, proof)})", tone)


def receipt_kind_word(kind: str) -> Word:
    """The kind of a receipt in one word, for a table."""
    return OUTCOMES.get(kind, Word(kind))


def decision_words(action: str, strategy: str) -> str:
    """What a sweep decided for an agent: ``Resume the agent (native)``."""
    words = _DECISIONS.get(action, spelled(action))
    return f"{words} ({strategy})" if strategy else words


def session_word(status: Mapping[str, Any], *, has_agent: bool = True) -> Word:
    """What a session is up to, from its status: the first that holds, else its state."""
    state, wait = status["state"], status["wait"]
    words = (
        (status["recovering"], RECONNECTING),
        (status["error_code"] == UNREACHABLE, UNKNOWN),
        (status["pending_permissions"], Word("Asks for permission", "ask")),
        (wait and wait["kind"] != WaitKind.PERMISSION, Word("Waits for the outside", "calm")),
        (status["start_wait"], Word("Waits for its turn", "busy")),
        (
            status["asleep"] and not status["starting"] and state == SessionState.WAITING_FOR_INPUT,
            Word("Asleep", "off"),
        ),
        (status["retry"] and status["is_agent_running"], Word("Tries again", "busy")),
        (
            status["starting"] and state in (SessionState.CREATED, SessionState.WAITING_FOR_INPUT),
            SESSION_STATES[SessionState.STARTING],
        ),
    )
    return next((word for holds, word in words if holds), state_word(state, has_agent=has_agent))


def agent_word(status: Mapping[str, Any]) -> Word:
    """Whether a session's agent is up, from its status, as far as that can be known now."""
    if status["recovering"]:
        return RECONNECTING
    if status["error_code"] == UNREACHABLE:
        return UNKNOWN
    return Word("Running", "good") if status["is_agent_running"] else Word("Not running", "off")


def state_word(state: str, error_code: str = "", *, has_agent: bool = True) -> Word:
    """A session's state; one that nobody knows is shown as it is, and nobody knows it of one that does not answer."""
    if error_code == UNREACHABLE:
        return UNKNOWN
    if state == SessionState.WAITING_FOR_INPUT and not has_agent:
        return WORKSPACE_ONLY
    return SESSION_STATES.get(state, Word(state, "bad"))


def executor_word(status: str, reason: str, *, error_code: str = "", recovering: bool = False) -> Word:
    """The status of an execution; why it is stopped where that has a word.

    ``recovering``: nobody has looked since the control plane was started.
    """
    if recovering and status in (ExecutorStatus.STARTING, ExecutorStatus.READY):
        return RECONNECTING
    if error_code == UNREACHABLE:
        return UNKNOWN
    if status == ExecutorStatus.STOPPED and reason in _STOPPED_BECAUSE:
        return _STOPPED_BECAUSE[reason]
    return EXECUTOR_STATUSES.get(status, Word(status))


def capability_word(standing: str) -> Word:
    """How a claim of an agent stands."""
    return Word(standing.capitalize(), _STANDINGS.get(standing, "calm"))


def tool_word(status: str) -> Word:
    """The status of a tool call."""
    return TOOL_STATUSES.get(status, Word(status or "Waiting"))


def spelled(code: str) -> str:
    """A code as words: ``agent_gone`` becomes ``agent gone``."""
    return code.replace("_", " ")
