"""Audit what a supervisor does by itself: cause and owner go into the session's log and into our own."""

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
        "session.login.ended",
        "session.prompt.queued",
        "session.prompt.held",
        "session.prompt.overdue",
        "session.prompt.withdrawn",
        "session.prompt.dismissed",
        "session.attention",
    }
)
"""Events that, when a supervisor records them, report something that no user asked for at that moment."""
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
"""Payload fields that may appear in our log: our own codes and ids, never the words of an agent or a user."""


def add_audit_fields(transaction: SessionTransaction) -> None:
    """Add cause and owner to the audited events of a supervisor; values that an event already has win."""
    known = actor_context.current_context()
    if actor_context.OWNER not in known:
        return
    for event in transaction.events:
        if event.name in AUDITED_EVENTS:
            event.payload = {
                name: known.get(name, "") for name in (actor_context.CAUSE, actor_context.OWNER)
            } | event.payload


def write_audit_log(transaction: SessionTransaction) -> None:
    """Write a line of our own log for each audited event, after the commit."""
    known = actor_context.current_context()
    audited = [event for event in transaction.events if event.name in AUDITED_EVENTS]
    if not audited or actor_context.OWNER not in known:
        return
    session = transaction.session
    about: dict[str, Any] = {
        **known,
        "session_id": str(session.id),
        "task_id": str(session.task_id),
        "execution_id": str(session.agent_execution_id or ""),
    }
    on_commit(lambda: _write_lines(audited, about))


def _write_lines(events: Sequence[NewEvent], about: dict[str, Any]) -> None:
    for event in events:
        fields = {name: event.payload[name] for name in _LOGGED_FIELDS if event.payload.get(name) not in (None, "")}
        words = ", ".join(f"{name} {value}" for name, value in fields.items())
        known = {**about, actor_context.CAUSE: event.payload.get(actor_context.CAUSE, "")}
        name = event.name.removeprefix("session.")
        arguments = (about["session_id"], name, words and f": {words}", known[actor_context.CAUSE])
        extra = {**known, **_safe_field_names(fields), "event": event.name, "seq": event.seq}
        log.info("session %s: %s%s (%s)", *arguments, extra=extra)


def _safe_field_names(fields: dict[str, Any]) -> dict[str, Any]:
    """Prefix the names, because ``logging`` reserves some of them (``name``, ``msg``) for itself."""
    return {f"act_{name}": value for name, value in fields.items()}
