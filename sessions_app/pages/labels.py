"""Labels of states, receipts and error codes on the pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from executors_app.agent_capabilities import CapabilityStanding
from executors_app.wire.executions import LOCAL, ExecutorStatus
from sessions_app.board.rules.moves import COLUMN_NAMES
from sessions_app.kernel.rules.states import DerivedStatus, TaskState, WorkState
from sessions_app.models import ContinuityReceipt
from sessions_app.recovery.rules.resumability import UNREACHABLE, Policy
from sessions_app.sessions.rules.situation_facts import (
    LABELS,
    NOT_STARTED_LABEL,
    Code,
    Label,
    SituationFacts,
    humanize_code,
)
from sessions_app.starts.rules.restart_rules import WaitReason

TASK_STATE_LABELS: Final[Mapping[str, Label]] = {
    TaskState.TODO: Label(COLUMN_NAMES[TaskState.TODO], "off"),
    TaskState.IN_PROGRESS: Label(COLUMN_NAMES[TaskState.IN_PROGRESS], "busy"),
    TaskState.REVIEW: Label(COLUMN_NAMES[TaskState.REVIEW], "ask"),
    TaskState.DONE: Label(COLUMN_NAMES[TaskState.DONE], "good"),
    TaskState.FAILED: Label(COLUMN_NAMES[TaskState.FAILED], "bad"),
    TaskState.CANCELLED: Label(COLUMN_NAMES[TaskState.CANCELLED], "off"),
}

EXECUTOR_STATUS_LABELS: Final[Mapping[str, Label]] = {
    ExecutorStatus.STARTING: Label("Starting", "busy"),
    ExecutorStatus.READY: Label("Ready", "good"),
    ExecutorStatus.ERROR: Label("Error", "bad"),
    ExecutorStatus.STOPPED: Label("Stopped", "off"),
}
_STOP_REASON_LABELS: Final[Mapping[str, Label]] = {
    "idle": LABELS[Code.ASLEEP],
    "new": NOT_STARTED_LABEL,
}

_CAPABILITY_TONES: Final[Mapping[str, str]] = {
    CapabilityStanding.OBSERVED: "good",
    CapabilityStanding.FAILED: "bad",
    CapabilityStanding.NOT_SUPPORTED: "off",
}

DERIVED_STATUS_LABELS: Final[Mapping[str, Label]] = {
    DerivedStatus.INTERRUPTED_STARTUP: Label("Interrupted", "bad"),
    DerivedStatus.INTERRUPTED_WAITING: Label("Interrupted while waiting", "bad"),
    DerivedStatus.WAITING: Label("Waiting", "ask"),
    DerivedStatus.RUNNING: Label("Running", "busy"),
    DerivedStatus.IDLE: Label("Idle", "off"),
}
"""Labels of the derived status of a session, in the order in which it is decided."""
WORK_STATE_LABELS: Final[Mapping[str, Label]] = {
    WorkState.IDLE: Label("Idle", "off"),
    WorkState.WORKING: Label("Working", "busy"),
    WorkState.DONE: Label("Work ended", "off"),
}

TOOL_STATUS_LABELS: Final[Mapping[str, Label]] = {
    "pending": Label("Waiting", "calm"),
    "in_progress": Label("Running", "busy"),
    "unfinished": Label("No result", "calm"),
    "completed": Label("Done", "good"),
    "failed": Label("Failed", "bad"),
    "interrupted": Label("Interrupted", "bad"),
    "cancelled": Label("Cancelled", "off"),
}

DELIVERY_STATE_LABELS: Final[Mapping[str, Label]] = {
    "pending": Label("Sending", "busy"),
    "sent": Label("Sent", "good"),
    "failed": Label("Failed", "bad"),
    "dropped": Label("Not needed", "off"),
}


@dataclass(frozen=True, slots=True)
class PolicyLabel:
    """The short label of a recovery policy, and a sentence that explains it."""

    text: str
    explanation: str


POLICY_LABELS: Final[Mapping[str, PolicyLabel]] = {
    Policy.AUTO: PolicyLabel("Every session that was running", "Agents that ran start again, working ones first."),
    Policy.WORKING: PolicyLabel("Sessions that were working", "Agents that were working, or have queued prompts."),
    Policy.ON_OPEN: PolicyLabel("When someone opens the session", "Opening its page or a prompt starts the agent."),
    Policy.MANUAL: PolicyLabel("Only manually", "An agent starts only by “Resume session” or a prompt."),
}

POLICY_WORDS: Final[Mapping[str, str]] = {str(policy): label.text for policy, label in POLICY_LABELS.items()}
POLICY_CHOICES: Final = (("", "As this installation"), *POLICY_WORDS.items())
"""For a form of the admin; empty: no choice of its own."""

PROMPT_STATE_LABELS: Final[Mapping[str, str]] = {
    "queued": "Queued",
    "sending": "Sending",
    "accepted": "Received by the agent",
    "delivered": "The agent is working on it",
    "held": "It is not known whether the agent received this.",
    "interrupted": "The agent was interrupted while it worked on this.",
}

_RECEIPT_LABELS: Final[Mapping[str, Label]] = {
    "reattached": Label("Reattached: the same process", "good"),
    "resumed": Label("Resumed: the agent restored its own conversation", "good"),
    "loaded": Label("Loaded: the agent replayed its conversation", "good"),
    "injected": Label("New conversation with the previous history", "ask"),
    "workspace_only": Label("Workspace only: no agent is running", "calm"),
    "fresh": Label("Started fresh: the agent does not know the earlier conversation", "ask"),
    "failed": Label("Could not be resumed", "bad"),
}
_NOT_STARTED: Final[Mapping[str, Label]] = {
    "program_missing": Label("Not started: the agent’s program is not installed", "bad"),
    "auth_required": Label("Not started: the agent is not logged in", "bad"),
}
FIRST_FAILED: Final = Label("Could not be started", "bad")
_VERIFIED: Final[Mapping[str, str]] = {
    "same_process": "verified",
    "replay": "verified by replay",
    "first_turn": "confirmed by its first turn",
    "quoted": "verified by quoting your last request",
    "unproven": "unproven",
    "pending": "not verified yet; the next turn decides",
    "none": "not verified",
}
_UNPROVEN: Final[Mapping[str, str]] = {
    "resumed": "Resumed: the agent reports that it has its conversation",
    "loaded": "Loaded: the agent reports that it has its conversation",
}
"""Weaker labels for receipts without proof: they only repeat what the agent reports."""
_NOTHING_TO_VERIFY: Final = frozenset({"workspace_only", "fresh", "failed"})


OUTCOME_LABELS: Final[Mapping[str, Label]] = {
    "reattached": Label("reattached", "good"),
    "resumed": Label("resumed", "good"),
    "loaded": Label("loaded", "good"),
    "injected": Label("history included", "ask"),
    "fresh": Label("started fresh", "ask"),
    "workspace_only": Label("workspace only", "calm"),
    "failed": Label("failed", "bad"),
    "skipped": Label("no receipt", "off"),
}
"""Labels of the results of a sweep, in the order in which they are shown."""
SWEEP_TRIGGER_LABELS: Final[Mapping[str, str]] = {
    "boot": "When a supervisor started",
    "command": "On request",
    "reconcile": "Regular check",
}
_DECISION_LABELS: Final[Mapping[str, str]] = {
    "none": "Nothing to do",
    "reattach": "Reattach to the agent",
    "resume": "Resume the agent",
    "start_workspace": "Start the workspace",
    "stop": "Stop it",
}

FIRST_START: Final = Label("First start", "good")
NOTHING_SAID_BEFORE: Final = Label("New conversation", "calm")


def isolation_label(runtime: str, *, is_isolated: bool) -> Label:
    """Return the label that says whether agents of a runtime are kept apart from Kandev, or from their machine."""
    if is_isolated:
        return Label("Isolated", "good")
    if runtime == LOCAL:
        return Label("Runs unsandboxed on this machine", "ask")
    return Label("Runs unsandboxed on its machine", "ask")


def receipt_label(receipt: ContinuityReceipt, *, is_first: bool = False, said_before: bool = True) -> Label:
    """Return the label of a receipt, such as ``Reattached: the same process (verified)``.

    A fresh start loses something only if there was a turn before (``said_before``), so the first receipt of a session
    (``is_first``) never reports a loss.
    """
    if receipt.kind == "fresh" and not receipt.evidence.get("completed_turns"):
        if is_first:
            return FIRST_START
        if not said_before:
            return NOTHING_SAID_BEFORE
    label = _RECEIPT_LABELS.get(receipt.kind, Label(receipt.kind))
    if receipt.kind == "failed" and receipt.reason in _NOT_STARTED:
        return _NOT_STARTED[receipt.reason]
    if receipt.kind == "failed" and (is_first or not said_before):
        return FIRST_FAILED
    if receipt.kind == "failed" or receipt.kind in _NOTHING_TO_VERIFY:
        return label
    proof = receipt.verified
    if proof == "unproven":
        return Label(f"{_UNPROVEN.get(receipt.kind, label.text)} ({_VERIFIED[proof]})", "calm")
    text = f"{label.text} ({_VERIFIED.get(proof, proof)})"
    if proof in ("none", "pending"):
        return Label(text, "ask")
    return Label(text, label.tone)


def receipt_label_in_history(receipt: Any) -> Label:
    """Return the label of a receipt that was read ``with_history``."""
    return receipt_label(receipt, is_first=receipt.is_first, said_before=receipt.said_before)


def receipt_kind_label(kind: str) -> Label:
    """Return the short label of a kind of receipt, for tables."""
    return OUTCOME_LABELS.get(kind, Label(kind))


def decision_label(action: str, strategy: str) -> str:
    """Return the label of a sweep's decision, such as ``Resume the agent (native)``."""
    words = _DECISION_LABELS.get(action, humanize_code(action))
    if strategy:
        return f"{words} ({strategy})"
    return words


def agent_label(facts: SituationFacts) -> Label:
    """Return the label that says whether a session's agent is running, from the facts that the banner uses too."""
    if facts.unattended_host:
        return LABELS[Code.HOST_UNATTENDED]
    if facts.recovering:
        return LABELS[Code.RECOVERING]
    if facts.error_code == UNREACHABLE:
        return LABELS[Code.UNREACHABLE]
    if facts.agent_running:
        return Label("Running", "good")
    if facts.is_starting and facts.has_agent and not facts.opens_workspace:
        if facts.start_reason not in ("", WaitReason.LAUNCH):
            return LABELS[Code.START_QUEUE]
        return LABELS[Code.STARTING]
    return Label("Not running", "off")


def execution_label(
    status: str, reason: str, *, error_code: str = "", recovering: bool = False, unattended: bool = False
) -> Label:
    """Return the label of an execution's status, or of the reason why it is stopped, if that has a label.

    ``recovering``: no supervisor has checked on it since the control plane started. ``unattended``: its host has none.
    """
    if unattended and status in (ExecutorStatus.STARTING, ExecutorStatus.READY):
        return LABELS[Code.HOST_UNATTENDED]
    if recovering and status in (ExecutorStatus.STARTING, ExecutorStatus.READY):
        return LABELS[Code.RECOVERING]
    if error_code == UNREACHABLE:
        return LABELS[Code.UNREACHABLE]
    if status == ExecutorStatus.STOPPED and reason in _STOP_REASON_LABELS:
        return _STOP_REASON_LABELS[reason]
    return EXECUTOR_STATUS_LABELS.get(status, Label(status))


def capability_label(standing: CapabilityStanding) -> Label:
    """Return the label of a capability's standing."""
    return Label(standing.capitalize(), _CAPABILITY_TONES.get(standing, "calm"))


def tool_status_label(status: str) -> Label:
    """Return the label of a tool call's status."""
    return TOOL_STATUS_LABELS.get(status, Label(status or "Waiting"))
