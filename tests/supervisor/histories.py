"""Build the history of a session at once, as the supervisor does before a prompt."""

from __future__ import annotations

from sessions_app.models import TaskSession
from sessions_app.recovery.services.history import build, load_request, store


def prepare_history(session: TaskSession) -> None:
    """Build and store the history unless it is current. Raises PoolUnavailable. Never call it in a transaction."""
    request = load_request(session)
    if request is not None:
        store(request, build(request))
