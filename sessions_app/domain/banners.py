"""The one banner of a session's page: the most important thing to say, in words for people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from executors_app.domain import ExecutorStatus
from sessions_app.domain.resumability import Assessment, Reason, Strategy, token_was_rejected
from sessions_app.domain.states import TERMINAL_STATES, SessionState

Action = Literal[
    "", "resume", "fresh_start", "try_again", "new_session", "choose_conversation", "review_prompts", "answer"
]
Level = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Banner:
    """One sentence for people, and the button beside it (``action``; empty: none)."""

    level: Level
    text: str
    action: Action = ""
    explanation: str = ""
    """The longer word, for a tooltip or the line below."""


@dataclass(frozen=True, slots=True)
class BannerFacts:
    """What the banner is chosen by."""

    session_state: SessionState
    executor_status: ExecutorStatus | None
    assessment: Assessment
    error_code: str = ""
    error_message: str = ""
    workspace_reason: str = ""
    recovering: bool = False
    """No sweep has seen this row yet."""
    continuing: bool = False
    queued_for_capacity: bool = False
    queued_prompts: int = 0
    overdue_prompts: int = 0
    """Of these and those on their way: so many have waited for an agent longer than they should."""
    held_prompts: int = 0
    interrupted_prompts: int = 0
    pending_permissions: int = 0
    attempts: int = 0
    next_restart_at: datetime | None = None


_Case = tuple[Callable[[BannerFacts], bool], Callable[[BannerFacts], Banner]]
NOT_RESUMABLE = "This agent doesn’t support resuming. Start a new session."
NOT_RESUMABLE_LONG = "This agent cannot resume previous sessions. Create a new session."
NOT_RESUMABLE_WORKSPACE = "Create new session to continue messaging."


def banner(facts: BannerFacts) -> Banner | None:
    """The most important thing to say, or None."""
    return next((say(facts) for holds, say in _BANNERS if holds(facts)), None)


def _count(number: int, one: str, many: str) -> str:
    return one if number == 1 else many.format(number)


def _resting(facts: BannerFacts) -> bool:
    """No agent is up or on its way; a session in ERROR is not on its way either."""
    return facts.assessment.row > 2 and facts.session_state != SessionState.STARTING


def _because(reason: Reason) -> Callable[[BannerFacts], bool]:
    return lambda facts: _resting(facts) and facts.assessment.cause.resume_reason is reason


def _says(reason: Reason) -> Callable[[BannerFacts], bool]:
    return lambda facts: _resting(facts) and facts.assessment.resume_reason is reason


def _ended(facts: BannerFacts) -> Banner:
    words = {
        SessionState.COMPLETED: "This session is complete.",
        SessionState.CANCELLED: "This session was cancelled.",
    }
    return Banner("info", words.get(facts.session_state, "This task is archived."), "new_session")


def _held(facts: BannerFacts) -> Banner:
    text = _count(
        facts.held_prompts,
        "It is not known whether the agent got a prompt. It was not sent again.",
        "It is not known whether the agent got {} prompts. They were not sent again.",
    )
    return Banner("warning", text, "review_prompts")


def _interrupted(facts: BannerFacts) -> Banner:
    text = _count(
        facts.interrupted_prompts,
        "A prompt was interrupted in the middle of its turn.",
        "{} prompts were interrupted in the middle of their turns.",
    )
    return Banner("warning", text, "review_prompts", "Continue it, send it again, or dismiss it.")


def _queued(facts: BannerFacts) -> Banner:
    text = _count(facts.queued_prompts, "A prompt waits for the agent.", "{} prompts wait for the agent.")
    resume: Action = "resume" if _resting(facts) else ""
    return Banner("info", text, resume)


def _overdue(facts: BannerFacts) -> Banner:
    text = _count(
        facts.overdue_prompts,
        "A prompt has waited for the agent for longer than a start should take.",
        "{} prompts have waited for the agent for longer than a start should take.",
    )
    resume: Action = "try_again" if _resting(facts) else ""
    why = facts.error_message or "It is still tried."
    return Banner("warning", text, resume, f"{why} What waits stays in the queue, and can be withdrawn.")


def _permission(facts: BannerFacts) -> Banner:
    text = _count(facts.pending_permissions, "The agent asks for a permission.", "The agent asks for {} permissions.")
    return Banner("warning", text, "answer")


def _missing_worktree(facts: BannerFacts) -> Banner:
    return Banner(
        "error",
        "The worktree of this session is gone and cannot be rebuilt.",
        "new_session",
        facts.workspace_reason or facts.error_message,
    )


def _gave_up(facts: BannerFacts) -> Banner:
    text = "The agent could not be started, and is not tried again by itself."
    return Banner("error", text, "try_again", facts.error_message)


def _backing_off(facts: BannerFacts) -> Banner:
    at = f"{facts.next_restart_at:%H:%M:%S} UTC" if facts.next_restart_at else ""
    text = f"The last start failed. The next one is at {at} (number {facts.attempts + 1})."
    return Banner("warning", text, "try_again", facts.error_message)


def _not_resumable(facts: BannerFacts) -> Banner:
    live = facts.executor_status == ExecutorStatus.READY
    return Banner("error", NOT_RESUMABLE, "new_session", NOT_RESUMABLE_WORKSPACE if live else NOT_RESUMABLE_LONG)


def _rejected(facts: BannerFacts) -> Banner:
    told = facts.assessment.cause.strategy is Strategy.HISTORY
    how = "is told what was said so far" if told else "starts a new conversation, without what was said before"
    return Banner(
        "warning",
        f"The agent no longer knows this conversation. With your next prompt it {how}.",
        "choose_conversation",
        "The old conversation can be tried again.",
    )


def _error(facts: BannerFacts) -> Banner:
    return Banner("error", facts.error_message or "The agent stopped with an error.", "try_again")


def _fixed(level: Level, text: str, action: Action = "", explanation: str = "") -> Callable[[BannerFacts], Banner]:
    made = Banner(level, text, action, explanation)
    return lambda _: made


_BANNERS: tuple[_Case, ...] = (
    (
        lambda f: f.assessment.resume_reason is Reason.DAMAGED_ROW,
        lambda f: Banner(
            "error", "What is stored of this session cannot be. Staff has to mend it.", "", f.error_message
        ),
    ),
    (lambda f: f.session_state in TERMINAL_STATES or f.assessment.cause.row == 3, _ended),
    (
        lambda f: f.recovering,
        _fixed("info", "The server has just started and is looking for this session. What is shown may be old."),
    ),
    (
        lambda f: f.error_code == "unreachable",
        _fixed(
            "warning",
            "The agent’s machine does not answer. The agent may still be at work; nothing was stopped.",
            "",
            "It is looked for again and again. What it did meanwhile appears when it answers.",
        ),
    ),
    (
        lambda f: f.error_code in {"disk_full", "disk_failing"},
        lambda f: Banner("error", f.error_message, "", "Nothing that was shown is lost."),
    ),
    (lambda f: f.pending_permissions > 0, _permission),
    (lambda f: f.held_prompts > 0, _held),
    (_because(Reason.WORKTREE_MISSING), _missing_worktree),
    (_says(Reason.GAVE_UP), _gave_up),
    (
        _because(Reason.CONTEXT_MISMATCH),
        _fixed(
            "error",
            "The agent loaded a conversation that is not the one shown here. You decide how to go on.",
            "choose_conversation",
            "Accept the loaded conversation, or start a fresh one. Nothing was deleted.",
        ),
    ),
    (
        lambda f: f.queued_for_capacity,
        _fixed("info", "Too many agents run on this machine. This one starts when another has ended."),
    ),
    (lambda f: _resting(f) and f.next_restart_at is not None, _backing_off),
    (_because(Reason.NOT_RESUMABLE), _not_resumable),
    (
        _because(Reason.MISSING_RESUME_TOKEN),
        _fixed(
            "error",
            "The agent’s conversation id was never learned, so this conversation cannot be resumed.",
            "fresh_start",
            "A fresh start keeps the workspace; the agent will not know what was said.",
        ),
    ),
    (lambda f: _resting(f) and token_was_rejected(f.assessment), _rejected),
    (lambda f: f.overdue_prompts > 0, _overdue),
    (
        lambda f: f.session_state == SessionState.STARTING,
        _fixed("info", "The agent is starting."),
    ),
    (lambda f: f.continuing, _fixed("info", "The agent was interrupted and has been asked to continue.")),
    (lambda f: f.interrupted_prompts > 0, _interrupted),
    (_says(Reason.STOPPED_BY_USER), _fixed("info", "This agent was stopped.", "resume")),
    (lambda f: f.session_state == SessionState.ERROR, _error),
    (lambda f: f.queued_prompts > 0, _queued),
    (_says(Reason.AGENT_NOT_RUNNING), _fixed("info", "The agent is not running. Resume the session.", "resume")),
    (_says(Reason.AGENT_NOT_RUNNING_FRESH_START), _fixed("info", "The agent is not running.", "resume")),
)
