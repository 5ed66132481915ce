"""The sessions that need a look now: their stream has ended, or somebody has told of a death."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Iterable
from typing import Final

UNSURE: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds until one that nobody could tell anything of is looked at again; after them the loop's passes do.

An engine tells of a death some moments before it lists the container as dead.
"""


class Losses:
    """Each is taken once for however often it was told of; what is told of after that needs another look."""

    def __init__(self) -> None:
        self._sessions: set[uuid.UUID] = set()
        self._told = asyncio.Event()
        self._looks: dict[uuid.UUID, int] = {}
        """How often the unsure ones were looked at again."""

    def tell(self, sessions: Iterable[uuid.UUID]) -> None:
        """These need a look."""
        self._sessions.update(sessions)
        self._told.set()

    async def take(self) -> frozenset[uuid.UUID]:
        """All that need one, as soon as there are any; they are the caller's to look at."""
        await self._told.wait()
        self._told.clear()
        taken, self._sessions = frozenset(self._sessions), set()
        return taken

    def looked_at(self, taken: Iterable[uuid.UUID], unknown: Collection[uuid.UUID]) -> None:
        """What came of the look: those that it could not tell anything of get another one soon."""
        for session_id in taken:
            looks = self._looks.pop(session_id, 0)
            if session_id in unknown and looks < len(UNSURE):
                self._looks[session_id] = looks + 1
                asyncio.get_running_loop().call_later(UNSURE[looks], self.tell, (session_id,))
