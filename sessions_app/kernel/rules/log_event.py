"""One event of a session's log, as rules see it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

ROLES: Final = ("user", "agent", "thought", "tool", "status")
MESSAGE_ADDED: Final = "session.message.added"


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One event of a session's log."""

    seq: int
    at: datetime
    name: str
    payload: Mapping[str, Any]
    once: str | None = None


def stable_id(session_id: uuid.UUID, kind: str, text: Any) -> uuid.UUID:
    """Return the UUID in ``text``, or one that is derived from any other id, the same each time."""
    try:
        return uuid.UUID(text)
    except (ValueError, AttributeError, TypeError):
        return uuid.uuid5(session_id, f"{kind}:{text}")
