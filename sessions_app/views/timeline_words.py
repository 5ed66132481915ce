"""The story of a session in plain words: what each line of its log, and each sweep, means to a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sessions_app.domain.recovery_rules import RULES
from sessions_app.models import SweepOutcome
from sessions_app.views.wording import Word, spelled

Payload = Mapping[str, Any]
RULE_SAYS: Final[Mapping[str, str]] = {rule.name: rule.says for rule in RULES}
"""What each rule of a sweep means, by its name."""

_INTERRUPTED: Final[Mapping[str, str]] = {
    "wait_timeout": "Nobody answered in time, so the wait is over",
    "agent_gone": "The agent’s process ended in the middle of the turn",
}
_SETTLED: Final[Mapping[str, str]] = {
    "continued": "An unfinished prompt is continued by a new one",
    "resent": "An unfinished prompt was sent again as a new one",
}
_GAPS: Final[Mapping[str, str]] = {
    "new_epoch": "the agent’s own record was begun anew",
    "lines_missing": "lines of the agent’s record are missing",
    "database_restored": "the database was restored from an older copy",
    "record_incomplete": "the portable record was incomplete",
}
_ENDED: Final[Mapping[str, Word]] = {
    "COMPLETED": Word("The session was closed as completed", "good"),
    "CANCELLED": Word("The session was closed as cancelled", "off"),
    "FAILED": Word("It was started too often without success; a person has to start it again", "bad"),
}


def _because(words: str, reason: Any) -> str:
    return f"{words}: {reason}" if reason else words


def _state(told: Payload) -> Word:
    to = str(told.get("to", ""))
    if to == "ERROR":
        return Word(
            _because("Something failed", told.get("error_message") or spelled(str(told.get("error_code", "")))), "bad"
        )
    return _ENDED.get(to, Word(f"The session is {spelled(to).lower()} now"))


def _exited(told: Payload) -> Word:
    if told.get("expected"):
        return Word("The agent’s process ended, as it was asked to", "off")
    code = told.get("exit_code")
    return Word("The agent’s process ended by itself" + (f" (exit status {code})" if code is not None else ""), "bad")


def _waits(told: Payload) -> Word:
    if told.get("wait_kind") == "permission":
        return Word("The agent asked for a permission and waits", "ask")
    return Word(_because("It waits for something outside", told.get("reason")), "ask")


def _retrying(told: Payload) -> Word:
    tries = f"try {told.get('attempt', '?')} of {told.get('of', '?')}"
    return Word(f"The model’s provider failed in passing, so the turn is tried again ({tries})", "ask")


def _cancelled(told: Payload) -> Word:
    return Word(_because("The turn was cancelled", spelled(str(told.get("reason", "")))), "off")


def _interrupted(told: Payload) -> Word:
    reason = str(told.get("reason", ""))
    return Word(_INTERRUPTED.get(reason) or _because("The turn was cut short", spelled(reason)), "bad")


def _gap(told: Payload) -> Word:
    reason = _GAPS.get(str(told.get("reason", "")), spelled(str(told.get("reason", ""))))
    return Word(f"Some of what the agent said may be missing here: {reason}", "bad")


_WORDS: Final[Mapping[str, Word | Callable[[Payload], Word]]] = {
    "session.state_changed": _state,
    "session.agentctl_ready": Word("The workspace is open: files, git, terminal", "calm"),
    "session.agentctl_error": lambda told: Word(_because("The workspace failed", told.get("error_message")), "bad"),
    "session.agentctl_stopped": Word("The workspace was stopped; the work in it is kept", "off"),
    "session.agentctl_abandoned": Word("For seven days nobody called, so the workspace ended", "off"),
    "session.agent_exited": _exited,
    "session.asleep": Word("It rested long enough, so it was put to sleep; the next prompt wakes it", "off"),
    "session.workspace.delayed": lambda told: Word(
        _because("The latest snapshot could not be transferred yet", told.get("error_message")), "ask"
    ),
    "session.workspace.arrived": Word("The latest snapshot was transferred", "calm"),
    "session.start_waits": lambda told: Word(
        _because("Its start waits for its turn", spelled(str(told.get("reason", "")))), "ask"
    ),
    "session.restart_ordered": Word("It is started again by itself", "busy"),
    "session.journal_gap": _gap,
    "session.journal_skipped": lambda told: Word(
        f"{told.get('count', 'Some')} damaged lines of the agent’s record were passed over", "bad"
    ),
    "session.run.started": Word("A turn began", "busy"),
    "session.run.waiting": _waits,
    "session.run.resumed": Word("It goes on: nothing is waited for any more", "busy"),
    "session.run.completed": Word("The turn was completed", "good"),
    "session.run.failed": lambda told: Word(_because("The turn failed", told.get("error_message")), "bad"),
    "session.run.cancelled": _cancelled,
    "session.run.interrupted": _interrupted,
    "session.run.retrying": _retrying,
    "session.run.stalled": Word("For long nothing was heard of the agent; nothing was ended for that", "ask"),
    "session.run.cancel_ignored": Word("The agent was asked to cancel its turn, and goes on with it", "ask"),
    "session.run.heard_again": Word("The agent was heard again", "busy"),
    "session.permission.expired": Word("A question of the agent is void: its process is gone", "off"),
    "session.prompt.held": Word(
        "It is not known whether the agent got a prompt. It is held for you, and not sent again by itself", "ask"
    ),
    "session.prompt.interrupted": Word(
        "The prompt of that turn is not finished. It is shown to you, and not sent again by itself", "ask"
    ),
    "session.prompt.dismissed": lambda told: Word(
        _SETTLED.get(str(told.get("settled_by", "")), "An unfinished prompt was dismissed"), "off"
    ),
    "session.prompt.overdue": Word("A prompt has waited too long for an agent; it stays in the queue", "ask"),
}


def event_words(name: str, payload: Payload) -> Word:
    """What a line of the log means; of an unknown one, its name as words."""
    found = _WORDS.get(name) or Word(spelled(name.rpartition(".")[2]).capitalize())
    return found if isinstance(found, Word) else found(payload)


_SWEPT: Final[Mapping[str, Word]] = {
    "reattach": Word("The agent had gone on in the same process, and what it said meanwhile is read in", "good"),
    "resume": Word("The agent was gone, so it is resumed", "ask"),
    "start_workspace": Word("The agent cannot go on by itself, so its workspace is opened", "ask"),
    "stop": Word("It is not wanted any more, so it is stopped", "off"),
}
_LOOKED: Final[Mapping[str, str]] = {
    "boot": "The control plane was restarted",
    "command": "Somebody asked for a sweep",
    "reconcile": "A regular look after it",
}


def sweep_words(outcome: SweepOutcome) -> Word:
    """What a sweep found and decided for one session."""
    looked = _LOOKED.get(outcome.sweep.trigger, "A look")
    word = _SWEPT.get(outcome.agent_action)
    if word is None:
        return Word(f"{looked}. {why(outcome.rule)}", "bad" if outcome.error_message else "calm")
    return Word(f"{looked}. {word.text}.", "bad" if outcome.error_message else word.tone)


def why(rule: str) -> str:
    """The sentence of a sweep's rule; of an unknown one, its name as words."""
    return RULE_SAYS.get(rule) or f"{spelled(rule).capitalize()}."
