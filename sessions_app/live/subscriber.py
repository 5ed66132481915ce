"""Somebody who follows one log or those of a task: first by reading what is behind, then by being sent to.

Nothing is queued for anybody. Who cannot be sent to now reads from the database by ``seq`` later.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from sessions_app.live.access import Seat
from sessions_app.live.close_codes import CloseCode
from sessions_app.live.lines import Line, Log, read_behind
from sessions_app.live.threads import in_database
from sessions_app.live.window import PATIENCE, Window
from sessions_app.models.storage import trouble_of

log = logging.getLogger(__name__)


class Subscriber(ABC):
    """One client. ``sent`` is the last seq it was given of each log that it follows."""

    def __init__(self, seat: Seat, sent: Mapping[Log, int]):
        self.seat = seat
        self.sent = dict(sent)
        self.window = Window()
        self.live = False
        """Level with the hub, which sends it every line from now on."""
        self.over = False
        """Cut off: nothing more is sent."""
        self._is_level: Callable[[], bool] = lambda: False
        self._catching_up: asyncio.Task[None] | None = None

    @abstractmethod
    async def transmit(self, lines: Sequence[Line]) -> None:
        """Hand lines to the connection."""

    @abstractmethod
    async def close(self, code: CloseCode) -> None:
        """End the connection."""

    def begin(self, is_level: Callable[[], bool]) -> None:
        """Catch up, then be live; ``is_level`` says whether the hub has sent nothing that is not in ``sent``."""
        self._is_level = is_level
        self._fall_behind()

    def forget(self) -> None:
        """Nothing more is read for it."""
        if self._catching_up is not None:
            self._catching_up.cancel()

    async def cut(self, code: CloseCode) -> None:
        """Stop sending, and close; once."""
        if not self.over:
            self.over, self.live = True, False
            await self.close(code)

    async def take(self, of: Log, lines: Sequence[Line]) -> None:
        """New lines of one log from the hub; those it has are dropped by seq."""
        if not self.live:
            return
        known = self.sent.get(of, 0)
        await self._send(lines if lines[0].seq > known else [line for line in lines if line.seq > known])
        if self.window.full and self.live:
            self._fall_behind()

    async def _send(self, lines: Sequence[Line]) -> None:
        if not lines or self.over:
            return
        for line in lines:
            self.sent[line.log] = line.seq
        last = lines[-1]
        self.window.sent(last.log.session_id, last.seq, len(lines), sum(line.size for line in lines))
        await self.transmit(lines)

    def _fall_behind(self) -> None:
        self.live = False
        self._catching_up = asyncio.create_task(self._catch_up())

    async def _catch_up(self) -> None:
        """Send what is behind, page by page and no faster than it is acknowledged, until level with the hub."""
        try:
            while await self.window.room(PATIENCE):
                lines, _ = await in_database(read_behind, dict(self.sent))
                await self._send(lines)
                # Nothing may be awaited from here on: the hub goes on where this has ended.
                if self._is_level() and not self.window.full:
                    self.live = not self.over
                    return
            await self.cut(CloseCode.SLOW)
        except Exception as error:
            log.exception("a client could not be given what it lacks")
            await self.cut(CloseCode.FAILED if trouble_of(error) is None else CloseCode.UNREACHABLE)
