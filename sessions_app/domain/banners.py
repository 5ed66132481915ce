"""The one banner of a session's page: the most important thing to say, in words for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from executors_app.domain import ExecutorStatus
from sessions_app.domain.agent_programs import NEEDS_PERSON_CODES, RETRY_SENTENCE
from sessions_app.domain.attention import AGENT_DIED
from sessions_app.domain.resumability import Assessment, Reason, Strategy, token_was_rejected
from sessions_app.domain.states import TERMINAL_STATES, SessionState, TaskEnd
from sessions_app.domain.transient_errors import Retry

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
Level = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Banner:
    """One sentence for people, and the button beside it (``action``; empty: none)."""

    level: Level
    text: str
    action: Action = ""
    explanation: str = ""
    """The longer word, for a tooltip or the line below."""
    at: datetime | None = None
    """The moment whose time of day ``text`` tells in UTC; a page shows it by the reader's clock."""


@dataclass(frozen=True, slots=True)
class BannerFacts:
    """What the banner is chosen by."""

    session_state: SessionState
    executor_status: ExecutorStatus | None
    assessment: Assessment
    task_end: TaskEnd = ""
    error_code: str = ""
    error_message: str = ""
    workspace_reason: str = ""
    recovering: bool = False
    """No sweep has seen this row yet."""
    continuing: bool = False
    queued_for_capacity: bool = False
    waits_for_turn: bool = False
    """It is to be started, and so many others are being started that it waits."""
    starts_before: int = 0
    """With one of these two: how many are before it."""
    asleep: bool = False
    """Put to sleep for idleness."""
    queued_prompts: int = 0
    overdue_prompts: int = 0
    """Of these and those on their way: so many have waited for an agent longer than they should."""
    held_prompts: int = 0
    interrupted_prompts: int = 0
    pending_permissions: int = 0
    history: Mapping[str, int] | None = None
    """What the next prompt tells a new agent of the conversation (``Injection.facts``); None: nothing."""
    history_armed: bool = False
    """That agent is up, and waits for this prompt."""
    attempts: int = 0
    next_restart_at: datetime | None = None
    retry: Retry | None = None
    stalled_since: datetime | None = None
    """The open turn has been silent since then."""
    interrupted_wait: str | None = None
    """What was waited for and has not come; None: nothing, or the session has gone on since."""
    wait_ended_at: datetime | None = None
    cancel_ignored_since: datetime | None = None
    """The open turn was to be cancelled then, and its agent goes on."""
    capability_note: str = ""
    """Which claims of its agent were seen not to be kept, in words."""


_Case = tuple[Callable[[BannerFacts], bool], Callable[[BannerFacts], Banner]]
TASK_ENDS: Mapping[TaskEnd, Banner] = {
    "archived": Banner("info", "This task is archived.", "unarchive", "Unarchive it to continue."),
    "done": Banner("info", "This task is done.", "reopen", "Reopen it to continue."),
    "cancelled": Banner("info", "This task is cancelled.", "reopen", "Reopen it to continue."),
}
"""What stands above everything else on a task that takes no more work: a new session there would be refused."""
NOT_RESUMABLE = "This agent doesn’t support resuming. Start a new session."
NOT_OFFERED = "resume_unsupported"
"""``error_code`` of a session whose agent has nothing to take a conversation up with."""
_OTHER_ACTIONS = frozenset({"", "review_prompts", "answer"})
NOT_RESUMABLE_LONG = "This agent cannot resume previous sessions. Create a new session."
NOT_RESUMABLE_WORKSPACE = "Create new session to continue messaging."


def banner(facts: BannerFacts) -> Banner | None:
    """The most important thing to say, or None."""
    said = next((say(facts) for holds, say in _BANNERS if holds(facts)), None)
    if said is None or not facts.capability_note or not _is_about_resuming(said, facts):
        return said
    return replace(said, explanation=f"{said.explanation} {facts.capability_note}".strip())


def _is_about_resuming(said: Banner, facts: BannerFacts) -> bool:
    return _is_resting(facts) and facts.assessment.cause.row > 5 and said.action not in _OTHER_ACTIONS


def _count(number: int, one: str, many: str) -> str:
    return one if number == 1 else many.format(number)


def _is_resting(facts: BannerFacts) -> bool:
    """No agent is up or on its way; a session in ERROR is not on its way either."""
    return facts.assessment.row > 2 and facts.session_state != SessionState.STARTING


def _because(reason: Reason) -> Callable[[BannerFacts], bool]:
    return lambda facts: _is_resting(facts) and facts.assessment.cause.resume_reason is reason


def _reason_text(reason: Reason) -> Callable[[BannerFacts], bool]:
    return lambda facts: _is_resting(facts) and facts.assessment.resume_reason is reason


def _ended(facts: BannerFacts) -> Banner:
    if facts.task_end:
        return TASK_ENDS[facts.task_end]
    completed = facts.session_state == SessionState.COMPLETED
    return Banner("info", "This session is complete." if completed else "This session was cancelled.", "new_session")


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


def _stalled(facts: BannerFacts) -> Banner:
    text = f"Nothing has been heard of the agent since {facts.stalled_since:%H:%M:%S} UTC."
    why = "It may still be at work; nothing was ended. The notice goes with its next word."
    return Banner("info", text, "cancel", why, facts.stalled_since)


def _wait_interrupted(facts: BannerFacts) -> Banner:
    what = f"“{facts.interrupted_wait}”" if facts.interrupted_wait else "something from outside"
    text = f"The wait for {what} ended without an answer at {facts.wait_ended_at:%H:%M:%S} UTC."
    why = "Wait again with a new key, or let the agent continue without it. It is told with its next prompt."
    return Banner("warning", text, "wait", why, facts.wait_ended_at)


def _cancel_ignored(facts: BannerFacts) -> Banner:
    text = f"The agent was asked to cancel its turn at {facts.cancel_ignored_since:%H:%M:%S} UTC, and goes on with it."
    why = "Wait for its end, or stop the agent: its conversation and its files are kept."
    return Banner("warning", text, "stop", why, facts.cancel_ignored_since)


def _queued(facts: BannerFacts) -> Banner:
    text = _count(facts.queued_prompts, "A prompt waits for the agent.", "{} prompts wait for the agent.")
    resume: Action = "resume" if _is_resting(facts) else ""
    return Banner("info", text, resume)


def _overdue(facts: BannerFacts) -> Banner:
    text = _count(
        facts.overdue_prompts,
        "A prompt has waited for the agent for longer than a start should take.",
        "{} prompts have waited for the agent for longer than a start should take.",
    )
    resume: Action = "try_again" if _is_resting(facts) else ""
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
    if facts.error_code == AGENT_DIED:
        text = "The agent kept dying, and is not restarted again by itself."
    return Banner("error", text, "try_again", facts.error_message)


def _backing_off(facts: BannerFacts) -> Banner:
    at = f"{facts.next_restart_at:%H:%M:%S} UTC" if facts.next_restart_at else ""
    text = f"The last start failed. The next one is at {at} (number {facts.attempts + 1})."
    if facts.session_state != SessionState.ERROR:
        text = f"The agent ended unexpectedly. It is restarted at {at} (restart {facts.attempts + 1})."
    return Banner("warning", text, "try_again", facts.error_message, facts.next_restart_at)


def _not_resumable(facts: BannerFacts) -> Banner:
    live = facts.executor_status == ExecutorStatus.READY
    return Banner("error", NOT_RESUMABLE, "new_session", NOT_RESUMABLE_WORKSPACE if live else NOT_RESUMABLE_LONG)


def _rejected(facts: BannerFacts) -> Banner:
    told = facts.assessment.cause.strategy is Strategy.HISTORY
    how = _history_estimate(facts) if told else "starts a new conversation, without what was said before"
    if facts.assessment.cause.token_strange:
        return Banner(
            "warning",
            "This conversation was opened with another agent profile, agent type or directory, and is not given to "
            f"this one. With your next prompt the agent {how}.",
            "choose_conversation",
            "Nothing was deleted: put that back, and the conversation is taken up again.",
        )
    why = (
        "can take no conversation up again" if facts.error_code == NOT_OFFERED else "no longer knows this conversation"
    )
    return Banner(
        "warning",
        f"The agent {why}. With your next prompt it {how}.",
        "choose_conversation",
        "The old conversation can be tried again.",
    )


def _history_estimate(facts: BannerFacts) -> str:
    """What the next prompt costs, before it is given."""
    told = facts.history
    if not told:
        return "is told what was said so far"
    left_out = f", {told['entries_cut']} older entries are left out" if told.get("entries_cut") else ""
    return f"is told what was said so far (about {told['estimated_tokens']:,} tokens{left_out})"


def _not_running(facts: BannerFacts) -> Banner:
    told = f" With your next prompt it {_history_estimate(facts)}." if facts.history else ""
    return Banner("info", f"The agent is not running.{told}", "resume")


def _armed(facts: BannerFacts) -> Banner:
    return Banner(
        "info", f"The agent has begun a new conversation. With your next prompt it {_history_estimate(facts)}."
    )


def _error(facts: BannerFacts) -> Banner:
    return Banner("error", facts.error_message or "The agent stopped with an error.", "try_again")


def _in_queue(text: str) -> Callable[[BannerFacts], Banner]:
    def say(facts: BannerFacts) -> Banner:
        number = facts.starts_before
        return Banner("info", text, "", _count(number, "One is before it.", "{} are before it.") if number else "")

    return say


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
    (lambda f: bool(f.task_end) or f.session_state in TERMINAL_STATES, _ended),
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
    (_reason_text(Reason.GAVE_UP), _gave_up),
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
        _in_queue("Too many agents run on this machine. This one starts when another has ended."),
    ),
    (
        lambda f: f.waits_for_turn,
        _in_queue("Many agents are being started. This one waits for its turn."),
    ),
    (
        lambda f: _is_resting(f) and f.error_code in NEEDS_PERSON_CODES,
        lambda f: Banner("error", f.error_message, "try_again", RETRY_SENTENCE),
    ),
    (lambda f: _is_resting(f) and f.next_restart_at is not None, _backing_off),
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
    (lambda f: _is_resting(f) and token_was_rejected(f.assessment), _rejected),
    (lambda f: f.overdue_prompts > 0, _overdue),
    (
        lambda f: f.retry is not None and not _is_resting(f),
        lambda f: Banner("warning", f.retry.said, "cancel", f.retry.message) if f.retry else _queued(f),
    ),
    (lambda f: f.cancel_ignored_since is not None, _cancel_ignored),
    (lambda f: f.stalled_since is not None, _stalled),
    (
        lambda f: f.session_state == SessionState.STARTING,
        _fixed("info", "The agent is starting."),
    ),
    (lambda f: f.interrupted_wait is not None and not f.queued_prompts, _wait_interrupted),
    (lambda f: f.continuing, _fixed("info", "The agent was interrupted and has been asked to continue.")),
    (lambda f: f.interrupted_prompts > 0, _interrupted),
    (_reason_text(Reason.STOPPED_BY_USER), _fixed("info", "This agent was stopped.", "resume")),
    (lambda f: f.session_state == SessionState.ERROR, _error),
    (lambda f: f.queued_prompts > 0, _queued),
    (lambda f: f.history_armed and not _is_resting(f), _armed),
    (
        lambda f: f.asleep and _is_resting(f),
        _fixed(
            "info",
            "The agent sleeps: nothing was asked of it for a while.",
            "resume",
            "Its conversation and its files are kept. Your next prompt wakes it.",
        ),
    ),
    (
        _because(Reason.NO_AGENT),
        _fixed(
            "info",
            "This session is a workspace: no agent runs in it.",
            "",
            "Other sessions of the task, or the nodes of a workflow, work in its directory.",
        ),
    ),
    (_reason_text(Reason.AGENT_NOT_RUNNING), _fixed("info", "The agent is not running. Resume the session.", "resume")),
    (_reason_text(Reason.AGENT_NOT_RUNNING_FRESH_START), _not_running),
)
