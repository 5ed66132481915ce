"""What keeps an agentctl from writing its journal, shown as the session's error for as long as it lasts."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final

from executors_app.agentctl.protocol import Code
from sessions_app.domain.states import SessionState
from sessions_app.models import Lease, writing

TROUBLES: Final[Mapping[str, str]] = {
    Code.DISK_FULL: "The disk that keeps what the agent says is full. Make room there: waiting prompts then go out.",
    Code.DISK_FAILING: "The disk that keeps what the agent says cannot be written. The agent waits for it.",
}
_STAY: Final = {SessionState.RUNNING: "turn_started", SessionState.WAITING_FOR_INPUT: "ready"}
"""Moves that lead to where the session is."""


def tell_trouble(session_id: uuid.UUID, lease: Lease, trouble: str) -> bool:
    """Show an agentctl's trouble, or (empty) that it is over. Raises LeaseLost.

    Returns False while the agent is starting: the end of the start says what the session's error is, so the caller
    has to try again after it.
    """
    with writing(session_id, lease) as draft:
        session = draft.session
        if trouble and session.state == SessionState.STARTING:
            return False
        stay = _STAY.get(SessionState(session.state))
        if stay is None or (not trouble and session.error_code not in TROUBLES):
            return True
        draft.move(stay, error_code=trouble, error_message=TROUBLES.get(trouble, ""), reason=trouble or "room_again")
    return True
