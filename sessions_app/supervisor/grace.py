"""The first minute of a supervisor: what it starts again then has mostly died of the restart, not of itself."""

from __future__ import annotations

import time
import uuid


class Grace:
    """Which starts are not counted as tries (design 9): of each session the first, while the grace lasts.

    One that dies again and again is counted from its second start on, or it would be started without a pause
    for as long as the grace is.
    """

    def __init__(self) -> None:
        self._until = 0.0
        self._given: set[uuid.UUID] = set()

    def begin(self, seconds: float) -> None:
        """From now on, by the monotonic clock."""
        self._until = time.monotonic() + seconds

    def holds_for(self, session_id: uuid.UUID) -> bool:
        """Whether a start of the session is not to be counted."""
        return session_id not in self._given and time.monotonic() < self._until

    def used_by(self, session_id: uuid.UUID) -> None:
        """A start of the session was claimed."""
        self._given.add(session_id)
