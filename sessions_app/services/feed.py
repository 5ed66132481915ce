"""The lines of a session's log, as the API and the socket tell them (interfaces 5)."""

from __future__ import annotations

from typing import Any

from sessions_app.models import SessionEvent, TaskSession


def event_json(event: SessionEvent, session: TaskSession) -> dict[str, Any]:
    """One line of the log of ``session``."""
    return {
        "type": "event",
        "event": event.name,
        "seq": event.seq,
        "epoch": session.epoch,
        "session_id": str(session.id),
        "task_id": str(session.task_id),
        "at": event.at.isoformat(),
        "payload": event.payload,
    }
