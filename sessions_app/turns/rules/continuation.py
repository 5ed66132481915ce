"""Decide whether an interrupted turn continues, and write the text that its agent gets.

The continue prompt is created in the transaction that records the interruption (rule 16 in docs/rules.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sessions_app.kernel.rules.states import WorkState
from sessions_app.recovery.rules.resumability import Policy
from sessions_app.waits.rules.wait_keys import REQUESTED_KINDS, WaitKind

_REQUEST_CHARS = 4000
_MAX_LISTED = 20
_MAX_NAMED = 5
"""Tool calls and processes that are named to people, each."""
_CHECK_STATE_FIRST = (
    "Some of your last steps may have been done, half done or not done. Look at the files, git status and "
    "running processes first: verify before repeating, and do not repeat what is already there. Then finish the "
    "request."
)


@dataclass(frozen=True, slots=True)
class Interruption:
    """What is known about an interrupted turn."""

    task_title: str
    last_request: str
    """The user's text that the turn worked on."""
    unfinished_tools: Sequence[str] = ()
    """Titles of tool calls without a result."""
    changed_files: Sequence[str] = ()
    """Files that changed in git since the turn began."""
    dead_processes: Sequence[str] = ()
    """Commands that were running in the background."""
    unlisted_processes: int = 0
    """How many others were."""
    outside_turn: bool = False
    """Whether no turn was open."""
    was_working: bool = True
    """Whether the agent itself was at work; False: only processes were left of its turns."""


@dataclass(frozen=True, slots=True)
class InterruptedWait:
    """An external wait that ended without an answer."""

    kind: str
    reason: str
    deadline: str = ""
    """ISO 8601; empty: the wait had no deadline."""


@dataclass(frozen=True, slots=True)
class ContinueFacts:
    """What decides whether an interrupted turn is continued automatically."""

    work_state: WorkState
    policy: Policy
    setting: bool | None
    """``KANDEV_CONTINUE`` or the session's own setting; None: on if the policy is ``auto``."""
    prompt_held: bool
    """The turn's prompt is in doubt: it is not known whether the agent received it."""
    cancelled_by_user: bool
    """A user cancelled the turn, and so knows that it ended."""
    stopped_by_user: bool
    """A user stopped the agent, so nothing continues automatically."""
    user_prompt_queued: bool


def was_interrupted(facts: ContinueFacts) -> bool:
    """Return whether the next prompt tells the agent that its turn was interrupted."""
    return facts.work_state == WorkState.WORKING and not facts.cancelled_by_user and not facts.prompt_held


def should_continue(facts: ContinueFacts) -> bool:
    """Return whether to create a continue prompt.

    If the user has queued a newer prompt, that one is sent instead, with the note about the interruption.
    """
    is_on = facts.setting
    if is_on is None:
        is_on = facts.policy == Policy.AUTO
    return is_on and was_interrupted(facts) and not facts.stopped_by_user and not facts.user_prompt_queued


def continue_prompt(facts: Interruption) -> str:
    """Return the prompt that asks an agent to continue an interrupted turn."""
    parts = [
        f"Your process was restarted while you were working on the task “{facts.task_title}”.",
        f"The last request was:\n\n{_quoted(facts.last_request)}",
        *_what_is_known(facts),
        _CHECK_STATE_FIRST,
    ]
    return "\n\n".join(parts)


def retry_prompt(facts: Interruption, trouble: str) -> str:
    """Return the prompt that retries a turn after an error of the provider, which ``trouble`` describes."""
    parts = [
        f"Your last turn on the task “{facts.task_title}” was cut short. {trouble}",
        f"The last request was:\n\n{_quoted(facts.last_request)}",
        *_what_is_known(facts),
        _CHECK_STATE_FIRST,
    ]
    return "\n\n".join(parts)


def interruption_note(facts: Interruption) -> str:
    """Return the note before the next prompt that tells the agent about its interrupted work."""
    parts = [
        *_what_was_interrupted(facts),
        *_what_is_known(facts),
        "Verify what is there before you repeat or rely on any of it. The new request follows.]",
    ]
    return "\n\n".join(parts)


def _what_was_interrupted(facts: Interruption) -> list[str]:
    if not facts.outside_turn:
        begin = "[Note by the system: your process was ended in the middle of your last turn."
        return [begin, f"The request was:\n\n{_quoted(facts.last_request)}"]
    if facts.was_working:
        return ["[Note by the system: your process was ended while you worked between two turns."]
    return ["[Note by the system: your process was ended between two turns, and with it what you had left running."]


def cut_off_sentence(facts: Interruption, process_count: int) -> str:
    """Tell people what ended with an agent that had no turn open; ``process_count`` includes those not listed."""
    if facts.was_working:
        sentences = ["The agent was working outside a turn, and that work was cut off."]
    else:
        sentences = []
    if facts.unfinished_tools:
        sentences.append(f"Without a result: {_enumerated(facts.unfinished_tools, len(facts.unfinished_tools))}.")
    if process_count:
        named = _enumerated(facts.dead_processes, process_count)
        sentences.append(f"Processes that it had left running ended with it: {named}.")
    return " ".join([*sentences, "The agent learns this with your next prompt."])


def _enumerated(items: Sequence[str], count: int) -> str:
    named = [" ".join(item.split()) for item in items[:_MAX_NAMED]]
    if count > len(named):
        named.append(f"{count - len(named)} more")
    return "; ".join(named)


def interrupted_wait_note(wait: InterruptedWait) -> str:
    """Return the note before the next prompt that tells the agent that its wait got no answer."""
    return f"[Note by the system: {_wait_ended(wait)} The new request follows.]"


def interrupted_wait_prompt(wait: InterruptedWait) -> str:
    """Return the prompt that asks an agent to continue without the result it waited for."""
    return (
        f"{_wait_ended(wait)}\n\nContinue without it. Do not assume an outcome: check whether it has "
        "happened in the meantime, do what does not depend on it, and report what is still missing."
    )


def _wait_ended(wait: InterruptedWait) -> str:
    what = REQUESTED_KINDS.get(wait.kind, REQUESTED_KINDS[WaitKind.EXTERNAL])
    reason, until = " ".join(wait.reason.split()), ""
    if reason:
        what = f"{what}: “{reason}”"
    if wait.deadline:
        until = f" until {wait.deadline}"
    return f"This session waited{until} for {what}. Nobody answered, so the wait was ended."


def _what_is_known(facts: Interruption) -> list[str]:
    lists = (
        ("These tool calls have no result; they may or may not have had their effect:", facts.unfinished_tools, 0),
        ("Changed in git since the turn began:", facts.changed_files, 0),
        ("These background processes have ended:", facts.dead_processes, facts.unlisted_processes),
    )
    return [f"{title}\n{_listed(items, unlisted)}" for title, items, unlisted in lists if items or unlisted]


def _listed(items: Sequence[str], unlisted: int) -> str:
    lines = [f"- {' '.join(item.split())}" for item in items[:_MAX_LISTED]]
    more = len(items) + unlisted - len(lines)
    if more > 0:
        lines.append(f"- and {more} more" if lines else f"- {more} whose commands are unknown")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    if len(text) > _REQUEST_CHARS:
        text = f"{text[:_REQUEST_CHARS]} … [cut]"
    return "\n".join(f"> {line}".rstrip() for line in text.strip().splitlines())
