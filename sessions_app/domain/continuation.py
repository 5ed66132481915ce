"""What an agent is told after its turn was interrupted (rule 16; design, section 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sessions_app.domain.recovery_facts import Policy
from sessions_app.domain.states import WorkState

_REQUEST_CHARS = 4000
_MAX_LISTED = 20
_CHECK_STATE_FIRST = (
    "Some of your last steps may have been done, half done or not done. Look at the files, git status and "
    "running processes first: verify before repeating, and do not repeat what is already there. Then finish the "
    "request."
)


@dataclass(frozen=True, slots=True)
class Interruption:
    """What is known of the turn that was cut short."""

    task_title: str
    last_request: str
    """The user's text that the turn was about."""
    unfinished_tools: Sequence[str] = ()
    """Titles of tool calls without a result."""
    changed_files: Sequence[str] = ()
    """What changed in git since the turn began."""
    dead_processes: Sequence[str] = ()
    """Commands that were running in the background."""


@dataclass(frozen=True, slots=True)
class InterruptedWait:
    """A wait for the outside that has ended without an answer."""

    kind: str
    reason: str
    deadline: str = ""
    """ISO 8601; empty: it had none."""


@dataclass(frozen=True, slots=True)
class ContinueFacts:
    """What decides whether an interrupted turn is continued by itself."""

    work_state: WorkState
    policy: Policy
    setting: bool | None
    """``KANDEV_CONTINUE`` or the session's own choice; None: as the policy has it."""
    prompt_held: bool
    """The turn's prompt is in doubt: nobody knows whether the agent got it."""
    cancelled_by_user: bool
    """A user asked for the end of the turn, and knows what came of it."""
    stopped_by_user: bool
    """A user asked for the end of the agent; nothing goes on by itself."""
    user_prompt_queued: bool
    agent_owns_turn: bool
    turn_finished: bool
    """The journal holds its end."""


def was_interrupted(facts: ContinueFacts) -> bool:
    """Whether the agent is told, with its next prompt, that a turn of its was cut short."""
    ended = facts.turn_finished or facts.cancelled_by_user or facts.agent_owns_turn
    return facts.work_state == WorkState.WORKING and not ended and not facts.prompt_held


def should_continue(facts: ContinueFacts) -> bool:
    """Whether a continue prompt is made; a user's newer prompt goes in its place, and tells the same."""
    on = facts.policy == Policy.AUTO if facts.setting is None else facts.setting
    return on and was_interrupted(facts) and not facts.stopped_by_user and not facts.user_prompt_queued


def continue_prompt(facts: Interruption) -> str:
    """The system's words to an agent that goes on with an interrupted turn."""
    parts = [
        f"Your process was restarted while you were working on the task “{facts.task_title}”.",
        f"The last request was:\n\n{_quoted(facts.last_request)}",
        *_what_is_known(facts),
        _CHECK_STATE_FIRST,
    ]
    return "\n\n".join(parts)


def retry_prompt(facts: Interruption, trouble: str) -> str:
    """The system's words to an agent whose turn the provider of its model has cut short; ``trouble`` says how."""
    parts = [
        f"Your last turn on the task “{facts.task_title}” was cut short. {trouble}",
        f"The last request was:\n\n{_quoted(facts.last_request)}",
        *_what_is_known(facts),
        _CHECK_STATE_FIRST,
    ]
    return "\n\n".join(parts)


def interruption_note(facts: Interruption) -> str:
    """What stands before the next prompt, so that the agent knows what became of its last turn."""
    parts = [
        "[Note by the system: your process was ended in the middle of your last turn.",
        f"The request was:\n\n{_quoted(facts.last_request)}",
        *_what_is_known(facts),
        "Verify what is there before you repeat or rely on any of it. The new request follows.]",
    ]
    return "\n\n".join(parts)


def interrupted_wait_note(wait: InterruptedWait) -> str:
    """What stands before the next prompt, so that the agent knows that what it waited for has not come."""
    return f"[Note by the system: {_wait_ended(wait)} The new request follows.]"


def interrupted_wait_prompt(wait: InterruptedWait) -> str:
    """The system's words to an agent that goes on without what it waited for."""
    return (
        f"{_wait_ended(wait)}\n\nContinue without it. Do not assume an outcome: look for yourself whether it has "
        "happened meanwhile, do what does not depend on it, and say what is still missing."
    )


def _wait_ended(wait: InterruptedWait) -> str:
    what = {"tool_result": "the result of a tool"}.get(wait.kind, "something from outside")
    name = f"{what}: “{' '.join(wait.reason.split())}”" if wait.reason.strip() else what
    until = f" until {wait.deadline}" if wait.deadline else ""
    return f"This session waited{until} for {name}. Nobody answered, so the wait was ended."


def _what_is_known(facts: Interruption) -> list[str]:
    lists = (
        ("These tool calls have no result; they may or may not have had their effect:", facts.unfinished_tools),
        ("Changed in git since the turn began:", facts.changed_files),
        ("These background processes have ended:", facts.dead_processes),
    )
    return [f"{title}\n{_listed(items)}" for title, items in lists if items]


def _listed(items: Sequence[str]) -> str:
    lines = [f"- {' '.join(item.split())}" for item in items[:_MAX_LISTED]]
    more = len(items) - _MAX_LISTED
    return "\n".join([*lines, f"- and {more} more"] if more > 0 else lines)


def _quoted(text: str) -> str:
    cut = text if len(text) <= _REQUEST_CHARS else text[:_REQUEST_CHARS] + " … [cut]"
    return "\n".join(f"> {line}".rstrip() for line in cut.strip().splitlines())
