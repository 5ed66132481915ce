"""Follow the prompt of an agent node: how far it is, and its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sessions_app.kernel.rules.states import PromptState, RunState, SessionState
from sessions_app.models import (
    Message,
    Prompt,
    TaskSession,
    Turn,
    answers_of,
    messages_of,
    newest_turn_of,
    texts_of,
)
from sessions_app.turns.rules import turn_ends

WAITS_FOR_USER: Final = "user"
WAITS_FOR_AGENT: Final = "agent"
WAITS_FOR_MACHINE: Final = "machine"
ANSWER_TEXT_LIMIT: Final = 1 << 20
"""Maximum number of characters of an agent's answer; of a longer one, the end is kept."""
_SETTLED_UNSENT: Final = {
    PromptState.DISMISSED: "its prompt was dismissed",
    PromptState.WITHDRAWN: "its prompt was withdrawn before it was sent",
}
_BLOCKED_STATES: Final = frozenset({SessionState.ERROR, SessionState.FAILED})
_FINISHED_STATES: Final = frozenset({SessionState.COMPLETED, SessionState.CANCELLED})


@dataclass(frozen=True, slots=True)
class NodeTurn:
    """The progress of a prompt. ``result`` is None while it is not settled, and then the result for the node."""

    waiting_for: str = ""
    result: dict[str, Any] | None = None
    prompt: Prompt | None = None
    """The last prompt of the chain."""


def follow_prompt(session: TaskSession | None, message_id: str) -> NodeTurn:
    """Return the progress of the prompt ``message_id``; reads only."""
    if session is None:
        return NodeTurn(result=_failed(None, "its session was deleted"))
    first = session.prompts.filter(message_id=message_id).first()
    if first is None:
        return NodeTurn(result=_failed(session, "its session was deleted"))
    row = last_prompt_of_chain(first)
    if row.state == PromptState.DONE and _is_suspended_by(session, row):
        return NodeTurn(waiting_for=WAITS_FOR_AGENT, prompt=row)
    if row.state == PromptState.DONE:
        return NodeTurn(result=_turn_answer(session, row), prompt=row)
    if row.state in _SETTLED_UNSENT:
        return NodeTurn(result=_failed(session, _SETTLED_UNSENT[PromptState(row.state)]), prompt=row)
    if session.state in _FINISHED_STATES:
        return NodeTurn(result=_failed(session, "its session was closed"), prompt=row)
    return NodeTurn(waiting_for=_waits_for(session, row), prompt=row)


def _is_suspended_by(session: TaskSession, row: Prompt) -> bool:
    """Whether a usage limit has ended the prompt's turn and lasts: what it said is no answer, and it may go on."""
    return session.suspensions.filter(ended_at=None, withdrawn_at=None, run__message_id=row.message_id).exists()


def last_prompt_of_chain(row: Prompt) -> Prompt:
    """Return the last prompt of a chain of prompts that were sent again or continued."""
    while (after := row.resent_as or row.continued_by) is not None:
        row = after
    return row


def _waits_for(session: TaskSession, row: Prompt) -> str:
    if row.state in (PromptState.HELD, PromptState.INTERRUPTED) or session.state in _BLOCKED_STATES:
        return WAITS_FOR_USER
    if session.runs.filter(message_id=row.message_id, state=RunState.WAITING).exists():
        return WAITS_FOR_USER
    if row.state == PromptState.QUEUED and session.budget_holds.filter(ended_at=None).exists():
        return WAITS_FOR_USER  # who can raise the budget, so that the time of the hold is not the step's
    if row.state == PromptState.QUEUED:
        return WAITS_FOR_AGENT
    return ""


def _failed(session: TaskSession | None, error: str) -> dict[str, Any]:
    session_id = str(session.id) if session else ""
    return {"text": "", "sessionId": session_id, "error": error}


def _turn_answer(session: TaskSession, row: Prompt) -> dict[str, Any]:
    turn = newest_turn_of(session.id, row.message_id)
    if turn is None:
        return {"text": "", "sessionId": str(session.id), "error": ""}
    return {"text": answer_text(turn), "sessionId": str(session.id), "error": _turn_error(turn)}


def _turn_error(turn: Turn) -> str:
    if turn.state == RunState.COMPLETED:
        return turn_ends.early_stop_sentence(turn.reason)
    if turn.state != RunState.FAILED:
        return f"the agent’s turn was {turn.state}"
    reason = turn.reason
    last_error = messages_of(turn).filter(role="status", payload__level="error").last()
    if last_error:
        reason = texts_of([last_error])[last_error.id]
    return f"the agent’s turn has failed: {reason.strip()[:1000]}"


def answer_text(turn: Turn) -> str:
    """Return the messages of the agent in a turn."""
    messages: list[Message] = list(answers_of(turn))
    text_by_message = texts_of(messages)
    texts = [text_by_message[message.id].strip() for message in messages]
    return "\n\n".join(filter(None, texts))[-ANSWER_TEXT_LIMIT:]
