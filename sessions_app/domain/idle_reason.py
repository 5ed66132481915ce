"""Why nothing is happening in a session right now, and what would make something happen; first match wins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from sessions_app.domain.agent_programs import NEEDS_PERSON_CODES, RETRY_SENTENCE
from sessions_app.domain.recovery_facts import UNREACHABLE, Policy, PolicySource, policy_wants_agent
from sessions_app.domain.restart_rules import WaitReason
from sessions_app.domain.states import TERMINAL_STATES, DesiredState, SessionState, WorkState


class IdleReason(StrEnum):
    """What keeps it."""

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


@dataclass(frozen=True, slots=True)
class IdleFacts:
    """What it is told by; as the status has it."""

    session_state: str
    desired_state: str
    work_state: str
    agent_running: bool
    policy: str
    policy_source: str
    recovering: bool = False
    supervised: bool = True
    """A supervisor lives, or nothing waits for one."""
    starting: bool = False
    start_reason: str = ""
    """A word of ``WaitReason``; empty: it does not wait to be started."""
    starts_before: int = 0
    pending_permissions: int = 0
    waits_outside: bool = False
    held_prompts: int = 0
    queued_prompts: int = 0
    needs_resume: bool = False
    error_code: str = ""
    error_message: str = ""
    owner_left: bool = False
    asleep: bool = False
    attempts: int = 0
    until: datetime | None = None
    """When the next start is due."""
    wait_until: datetime | None = None
    """When the wait for the outside ends by itself."""
    task_over: bool = False


@dataclass(frozen=True, slots=True)
class IdleExplanation:
    """The reason, in a sentence, and the next step; ``until`` is when it ends by itself."""

    reason: IdleReason
    text: str
    next_step: str
    until: datetime | None = None


_POLICY_SOURCES: Final[Mapping[str, str]] = {
    PolicySource.SESSION: "this session’s own choice",
    PolicySource.TEAM: "the team’s choice",
    PolicySource.DEPLOYMENT: "the deployment’s choice",
}
_POLICIES: Final[Mapping[str, str]] = {
    Policy.WORKING: "only agents that were at work, or have a prompt waiting, are brought back",
    Policy.ON_OPEN: "an agent is brought back when somebody opens its page or gives it a prompt",
    Policy.MANUAL: "an agent is brought back only by a person",
}
RESUME_HINT: Final = "Press “Resume session”, or give it a prompt."


def explain_idle(facts: IdleFacts) -> IdleExplanation | None:
    """Why it is still; None where something is happening, or where nothing ever will."""
    if facts.session_state in TERMINAL_STATES or facts.task_over:
        return None
    return next((say(facts) for holds, say in _REASONS if holds(facts)), None)


def _fixed(reason: IdleReason, text: str, next_step: str) -> Callable[[IdleFacts], IdleExplanation]:
    made = IdleExplanation(reason, text, next_step)
    return lambda _: made


def _in_line(reason: IdleReason, text: str) -> Callable[[IdleFacts], IdleExplanation]:
    def say(facts: IdleFacts) -> IdleExplanation:
        number = facts.starts_before
        before = f" {'One is' if number == 1 else f'{number} are'} before it." if number else ""
        return IdleExplanation(reason, f"{text}{before}", "Wait, or stop a session that you do not need.")

    return say


def _backing_off(facts: IdleFacts) -> IdleExplanation:
    if facts.session_state != SessionState.ERROR:
        why = "The agent ended unexpectedly."
        return IdleExplanation(
            IdleReason.BACKING_OFF, why, "It is restarted by itself. “Try again” does so now.", facts.until
        )
    why = f"The last start failed ({facts.error_message or facts.error_code or 'no reason was told'})."
    return IdleExplanation(
        IdleReason.BACKING_OFF, why, "It is tried again by itself. “Try again” does so now.", facts.until
    )


def _error(facts: IdleFacts) -> IdleExplanation:
    text = facts.error_message or "It stopped with an error."
    return IdleExplanation(IdleReason.ERROR, text, "Nothing is tried by itself: the banner offers what can be done.")


def _policy(facts: IdleFacts) -> IdleExplanation:
    who = _POLICY_SOURCES.get(facts.policy_source, "a choice")
    how = _POLICIES.get(facts.policy, "it is not brought back by itself")
    return IdleExplanation(IdleReason.POLICY, f"By {who} (policy “{facts.policy}”), {how}.", RESUME_HINT)


def _policy_waits(facts: IdleFacts) -> bool:
    if facts.agent_running or not facts.needs_resume:
        return False
    known = facts.policy in set(Policy)
    return known and not policy_wants_agent(facts.policy, facts.work_state, facts.queued_prompts > 0, boot=False)


_Case = tuple[Callable[[IdleFacts], bool], Callable[[IdleFacts], IdleExplanation]]
_REASONS: Final[tuple[_Case, ...]] = (
    (
        lambda f: f.recovering and f.supervised,
        _fixed(IdleReason.RECOVERING, "The server has just started and is looking for this session.", "Wait a moment."),
    ),
    (
        lambda f: f.pending_permissions > 0,
        _fixed(IdleReason.PERMISSION, "The agent waits for a person’s answer.", "Allow or refuse what it asks."),
    ),
    (
        lambda f: f.waits_outside,
        lambda f: IdleExplanation(
            IdleReason.OUTSIDE, "It waits for something from outside.", "Wait, or end the wait.", f.wait_until
        ),
    ),
    (
        lambda f: f.session_state == SessionState.FAILED,
        lambda f: IdleExplanation(
            IdleReason.GAVE_UP,
            f"{f.attempts} starts failed, so none is tried by itself any more.",
            "Press “Try again”.",
        ),
    ),
    (
        lambda f: f.desired_state == DesiredState.STOPPED,
        _fixed(IdleReason.STOPPED, "It was stopped, and is not started by itself.", RESUME_HINT),
    ),
    (
        lambda f: not f.supervised,
        _fixed(
            IdleReason.NO_SUPERVISOR,
            "No supervisor is running, so nothing that is asked is carried out.",
            "Ask staff to start one (manage.py supervise, or serve).",
        ),
    ),
    # Before every start: a prompt orders one, and nobody can start anything there until it answers.
    (
        lambda f: f.error_code == UNREACHABLE,
        _fixed(
            IdleReason.UNREACHABLE,
            "The agent’s machine does not answer. The agent may still be at work.",
            "It is looked for again and again; see to the machine.",
        ),
    ),
    (
        lambda f: f.start_reason == WaitReason.CAPACITY,
        _in_line(IdleReason.CAPACITY, "Too many agents run where it is to run. It starts when there is room."),
    ),
    (
        lambda f: f.start_reason == WaitReason.TURN,
        _in_line(IdleReason.TURN, "Many agents are being started. It waits for its turn."),
    ),
    (lambda f: f.starting, _fixed(IdleReason.STARTING, "Its start is under way.", "Wait a moment.")),
    (
        lambda f: f.owner_left and not f.agent_running,
        _fixed(
            IdleReason.OWNER_LEFT,
            "Its owner has left the team, so it is not started by itself.",
            "A member of the team can resume it.",
        ),
    ),
    (
        lambda f: f.error_code in NEEDS_PERSON_CODES and not f.agent_running,
        lambda f: IdleExplanation(
            IdleReason.ERROR, f.error_message or "The agent cannot be started.", RETRY_SENTENCE, f.until
        ),
    ),
    (lambda f: f.until is not None and not f.agent_running, _backing_off),
    (lambda f: f.session_state == SessionState.ERROR, _error),
    (
        lambda f: f.held_prompts > 0 and f.work_state != WorkState.WORKING,
        _fixed(IdleReason.IN_DOUBT, "It is not known whether the agent got a prompt.", "Send it again, or dismiss it."),
    ),
    (
        lambda f: f.asleep,
        _fixed(IdleReason.ASLEEP, "The agent sleeps: nothing was asked of it for long.", "Your next prompt wakes it."),
    ),
    (_policy_waits, _policy),
    (
        lambda f: f.needs_resume and not f.agent_running,
        _fixed(IdleReason.NEXT_LOOK, "The agent is not up; the next look of the supervisor brings it back.", "Wait."),
    ),
    (
        lambda f: f.agent_running and f.work_state != WorkState.WORKING and not f.queued_prompts,
        _fixed(IdleReason.YOUR_TURN, "The agent is up and has nothing to do.", "Give it a prompt."),
    ),
)
"""In the order in which they are asked."""
