"""Events that no module declares, and payloads that no code of this version writes."""

from __future__ import annotations

from typing import Any

from sessions_app.models import NewEvent, SessionTransaction


def record_raw_event(transaction: SessionTransaction, name: str, once: str | None = None, **payload: Any) -> None:
    """Append an event as another version could have written it: nothing follows from it."""
    transaction.events.append(NewEvent(name, payload, transaction.at, once))
