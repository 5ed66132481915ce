"""How much a client was sent and has not acknowledged; the web server itself would buffer without end."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from dataclasses import dataclass
from typing import Final

MAX_EVENTS: Final = 5000
MAX_BYTES: Final = 8 * 1024 * 1024
PATIENCE: Final = 5.0
"""Seconds that a client with a full window has for an acknowledgement."""
_MARKS: Final = 32
"""Into so many parts a window is divided for the account."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """What had been sent up to a line."""

    session_id: uuid.UUID
    seq: int
    events: int
    size: int


class Window:
    """The account of one client. Nothing is kept but sums, at a few marks on the way."""

    def __init__(self) -> None:
        self._marks: deque[_Mark] = deque()
        self._events = self._size = 0
        self._acked_events = self._acked_size = 0
        self._acked = asyncio.Event()

    @property
    def full(self) -> bool:
        """Nothing more may be sent."""
        return self._events - self._acked_events >= MAX_EVENTS or self._size - self._acked_size >= MAX_BYTES

    def sent(self, session_id: uuid.UUID, seq: int, events: int, size: int) -> None:
        """So many ``events`` of ``size`` bytes went out, up to ``seq`` of a session's log."""
        self._events += events
        self._size += size
        if self._marks and self._is_near(self._marks[-1]):
            self._marks.pop()
        self._marks.append(_Mark(session_id, seq, self._events, self._size))

    def _is_near(self, mark: _Mark) -> bool:
        """Whether a mark stands so close behind the one before it that it can move on."""
        events, size = self._acked_events, self._acked_size
        if len(self._marks) > 1:
            events, size = self._marks[-2].events, self._marks[-2].size
        return mark.events - events < MAX_EVENTS // _MARKS and mark.size - size < MAX_BYTES // _MARKS

    def ack(self, session_id: uuid.UUID, seq: int) -> None:
        """The client has everything up to ``seq`` of a session's log, so everything sent before it too."""
        reached = [n for n, mark in enumerate(self._marks) if mark.session_id == session_id and mark.seq <= seq]
        if not reached:
            return
        for _ in range(reached[-1] + 1):
            mark = self._marks.popleft()
        self._acked_events, self._acked_size = mark.events, mark.size
        self._acked.set()

    async def room(self, patience: float = PATIENCE) -> bool:
        """Wait until something may be sent; False if no acknowledgement makes room within ``patience`` seconds."""
        try:
            async with asyncio.timeout(patience):
                while self.full:
                    self._acked.clear()
                    await self._acked.wait()
        except TimeoutError:
            return False
        return True
