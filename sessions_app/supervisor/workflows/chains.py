"""What became of a prompt that a node has asked: its chain is followed to the row that settles it (rules 12-16)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sessions_app.domain.states import PromptState, RunState, SessionState
from sessions_app.models import Message, Prompt, Run, TaskSession, texts_of

USER, AGENT, MACHINE = "user", "agent", "machine"
TEXT_LIMIT: Final = 1 << 20
"""Characters of an answer that are kept: its end."""
_BEGINNINGS: Final = {
    PromptState.DISMISSED: "its prompt was dismissed",
    PromptState.WITHDRAWN: "its prompt was taken back before it was sent",
}
_STUCK: Final = frozenset({SessionState.ERROR, SessionState.FAILED})
_OVER: Final = frozenset({SessionState.COMPLETED, SessionState.CANCELLED})


@dataclass(frozen=True, slots=True)
class Turn:
    """How far a prompt has come. ``result`` is None while it is under way, else what the node is told."""

    waiting_for: str = ""
    result: dict[str, Any] | None = None
    prompt: Prompt | None = None
    """The row at the end of the chain."""


def follow(session: TaskSession | None, message_id: str) -> Turn:
    """What became of the prompt ``message_id``; reads only."""
    row = session.prompts.filter(message_id=message_id).first() if session is not None else None
    if session is None or row is None:
        return Turn(result=_failed(session, "its session was deleted"))
    row = last_of(row)
    if row.state == PromptState.DONE:
        return Turn(result=_answer(session, row), prompt=row)
    if row.state in _BEGINNINGS:
        return Turn(result=_failed(session, _BEGINNINGS[PromptState(row.state)]), prompt=row)
    if session.state in _OVER:
        return Turn(result=_failed(session, "its session was closed"), prompt=row)
    return Turn(waiting_for=_waits_for(session, row), prompt=row)


def last_of(row: Prompt) -> Prompt:
    """Where a chain of tries, resent and continued prompts has come to."""
    while (after := row.resent_as or row.continued_by) is not None:
        row = after
    return row


def _waits_for(session: TaskSession, row: Prompt) -> str:
    if row.state in (PromptState.HELD, PromptState.INTERRUPTED) or session.state in _STUCK:
        return USER
    if session.runs.filter(message_id=row.message_id, state=RunState.WAITING).exists():
        return USER
    return AGENT if row.state == PromptState.QUEUED else ""


def _failed(session: TaskSession | None, error: str) -> dict[str, Any]:
    return {"text": "", "sessionId": str(session.id) if session else "", "error": error}


def _answer(session: TaskSession, row: Prompt) -> dict[str, Any]:
    run = session.runs.filter(message_id=row.message_id).order_by("-started_at").first()
    return {"text": answer_of(session, row.message_id), "sessionId": str(session.id), "error": _trouble(session, run)}


def _trouble(session: TaskSession, run: Run | None) -> str:
    if run is None or run.state == RunState.COMPLETED:
        return ""
    if run.state != RunState.FAILED:
        return f"the agent’s turn was {run.state}"
    said = session.messages.filter(role="status", seq__gt=run.since_seq, created_at__gte=run.started_at)
    last = said.filter(payload__level="error").order_by("-seq").first()
    words = texts_of([last])[last.id] if last else run.reason
    return f"the agent’s turn has failed: {words.strip()[:1000]}"


def answer_of(session: TaskSession, message_id: str) -> str:
    """The agent's own messages between a prompt and the next one."""
    asked = session.messages.filter(role="user")
    begin = asked.filter(key=message_id).order_by("-seq").values_list("seq", flat=True).first()
    if begin is None:
        return ""
    end = asked.filter(seq__gt=begin).order_by("seq").values_list("seq", flat=True).first()
    said = session.messages.filter(role="agent", seq__gt=begin, **({"seq__lt": end} if end else {}))
    messages: list[Message] = list(said.order_by("seq"))
    texts = texts_of(messages)
    return "\n\n".join(text for one in messages if (text := texts[one.id].strip()))[-TEXT_LIMIT:]
