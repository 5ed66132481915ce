"""What a supervisor does by itself: each act carries its cause and its owner in the log of the session and in ours."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from django.db.transaction import on_commit

from sessions_app.domain import actor_context
from sessions_app.models.event import NewEvent
from sessions_app.models.transactions import SessionTransaction

log = logging.getLogger(__name__)

AUDITED_EVENTS: Final = frozenset(
    {
        "session.state_changed",
        "session.agentctl_starting",
        "session.agentctl_ready",
        "session.agentctl_error",
        "session.agentctl_stopped",
        "session.agent_exited",
        "session.asleep",
        "session.workspace.delayed",
        "session.workspace.arrived",
        "session.restart_ordered",
        "session.start_waits",
        "session.agentctl_abandoned",
        "session.receipt",
        "session.journal_gap",
        "session.journal_skipped",
        "session.permission.expired",
        "session.run.interrupted",
        "session.run.retrying",
        "session.run.stalled",
        "session.run.cancel_ignored",
        "session.token.expired",
        "session.prompt.queued",
        "session.prompt.held",
        "session.prompt.overdue",
        "session.prompt.withdrawn",
        "session.prompt.dismissed",
        "session.attention",
    }
)
"""Events that tell of something that nobody asked for at this moment, where a supervisor says them."""
_LOGGED_FIELDS: Final = (
    "from",
    "to",
    "kind",
    "state",
    "verified",
    "reason",
    "error_code",
    "message_id",
    "attempt",
    "strategy",
)
"""Of an event's payload: words of ours and ids, never what an agent or a user has said."""


def add_audit_fields(transaction: SessionTransaction) -> None:
    """Put cause and owner into the acts among these events, where a supervisor says them; their own words count."""
    known = actor_context.current_context()
    if actor_context.OWNER not in known:
        return
    for event in transaction.events:
        if event.name in AUDITED_EVENTS:
            event.payload = {
                name: known.get(name, "") for name in (actor_context.CAUSE, actor_context.OWNER)
            } | event.payload


def write_audit_log(transaction: SessionTransaction) -> None:
    """Write a line of our own log for each act, once the session's log has it."""
    known = actor_context.current_context()
    acts = [event for event in transaction.events if event.name in AUDITED_EVENTS]
    if not acts or actor_context.OWNER not in known:
        return
    session = transaction.session
    about: dict[str, Any] = {
        **known,
        "session_id": str(session.id),
        "task_id": str(session.task_id),
        "execution_id": str(session.agent_execution_id or ""),
    }
    on_commit(lambda: _write_lines(acts, about))


def _write_lines(acts: Sequence[NewEvent], about: dict[str, Any]) -> None:
    for event in acts:
        told = {name: event.payload[name] for name in _LOGGED_FIELDS if event.payload.get(name) not in (None, "")}
        words = ", ".join(f"{name} {value}" for name, value in told.items())
        known = {**about, actor_context.CAUSE: event.payload.get(actor_context.CAUSE, "")}
        name = event.name.removeprefix("session.")
        arguments = (about["session_id"], name, words and f": {words}", known[actor_context.CAUSE])
        extra = {**known, **_safe_field_names(told), "event": event.name, "seq": event.seq}
        log.info("session %s: %s%s (%s)", *arguments, extra=extra)


def _safe_field_names(told: dict[str, Any]) -> dict[str, Any]:
    """Names that a line of a log may have: some are Python's own."""
    return {f"act_{name}": value for name, value in told.items()}
