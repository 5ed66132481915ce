"""A client that follows logs: catch-up, live delivery, and the window of unacknowledged lines that limits both."""

from __future__ import annotations

import asyncio
import logging
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sessions_app.live.authentication import CloseCode, Subscription
from sessions_app.live.log_reader import LogLine, SessionLog, load_lines_after
from sessions_app.models.database_errors import classify_error
from sessions_app.services.database_threads import run_in_database

MAX_UNACKED_EVENTS: Final = 5000
MAX_UNACKED_BYTES: Final = 8 * 1024 * 1024
ACK_TIMEOUT: Final = 5.0
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


class AckWindow:
    """The account of one client. Nothing is kept but sums, at a few marks on the way."""

    def __init__(self) -> None:
        self._marks: deque[_Mark] = deque()
        self._events = self._size = 0
        self._acked_events = self._acked_size = 0
        self._acked = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Nothing more may be sent."""
        return (
            self._events - self._acked_events >= MAX_UNACKED_EVENTS
            or self._size - self._acked_size >= MAX_UNACKED_BYTES
        )

    def record_sent(self, session_id: uuid.UUID, seq: int, events: int, size: int) -> None:
        """So many ``events`` of ``size`` bytes went out, up to ``seq`` of a session's log."""
        self._events += events
        self._size += size
        if self._marks and self._can_merge_mark(self._marks[-1]):
            self._marks.pop()
        self._marks.append(_Mark(session_id, seq, self._events, self._size))

    def _can_merge_mark(self, mark: _Mark) -> bool:
        """Whether a mark stands so close behind the one before it that it can move on."""
        events, size = self._acked_events, self._acked_size
        if len(self._marks) > 1:
            events, size = self._marks[-2].events, self._marks[-2].size
        return mark.events - events < MAX_UNACKED_EVENTS // _MARKS and mark.size - size < MAX_UNACKED_BYTES // _MARKS

    def ack(self, session_id: uuid.UUID, seq: int) -> None:
        """The client has everything up to ``seq`` of a session's log, so everything sent before it too."""
        reached = [n for n, mark in enumerate(self._marks) if mark.session_id == session_id and mark.seq <= seq]
        if not reached:
            return
        for _ in range(reached[-1] + 1):
            mark = self._marks.popleft()
        self._acked_events, self._acked_size = mark.events, mark.size
        self._acked.set()

    async def wait_for_room(self, timeout: float = ACK_TIMEOUT) -> bool:
        """Wait until something may be sent; False if no acknowledgement makes room within ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while self.is_full:
                    self._acked.clear()
                    await self._acked.wait()
        except TimeoutError:
            return False
        return True


log = logging.getLogger(__name__)


class Subscriber(ABC):
    """One client. ``sent`` is the last seq it was given of each log that it follows."""

    def __init__(self, subscription: Subscription, sent: Mapping[SessionLog, int]):
        self.subscription = subscription
        self.sent = dict(sent)
        self.window = AckWindow()
        self.is_live = False
        """Level with the hub, which sends it every line from now on."""
        self.is_closed = False
        """Cut off: nothing more is sent."""
        self._is_caught_up: Callable[[], bool] = lambda: False
        self._catching_up: asyncio.Task[None] | None = None

    @abstractmethod
    async def transmit(self, lines: Sequence[LogLine]) -> None:
        """Hand lines to the connection."""

    @abstractmethod
    async def close(self, code: CloseCode) -> None:
        """End the connection."""

    def begin(self, is_caught_up: Callable[[], bool]) -> None:
        """Catch up, then be live; ``is_caught_up`` says whether the hub has sent nothing that is not in ``sent``."""
        self._is_caught_up = is_caught_up
        self._start_catch_up()

    def stop_catching_up(self) -> None:
        """Nothing more is read for it."""
        if self._catching_up is not None:
            self._catching_up.cancel()

    async def disconnect(self, code: CloseCode) -> None:
        """Stop sending, and close; once."""
        if not self.is_closed:
            self.is_closed, self.is_live = True, False
            await self.close(code)

    async def take(self, of: SessionLog, lines: Sequence[LogLine]) -> None:
        """New lines of one log from the hub; those it has are dropped by seq."""
        if not self.is_live:
            return
        known = self.sent.get(of, 0)
        await self._send(lines if lines[0].seq > known else [line for line in lines if line.seq > known])
        if self.window.is_full and self.is_live:
            self._start_catch_up()

    async def _send(self, lines: Sequence[LogLine]) -> None:
        if not lines or self.is_closed:
            return
        for line in lines:
            self.sent[line.log] = line.seq
        last = lines[-1]
        self.window.record_sent(last.log.session_id, last.seq, len(lines), sum(line.size for line in lines))
        await self.transmit(lines)

    def _start_catch_up(self) -> None:
        self.is_live = False
        self._catching_up = asyncio.create_task(self._catch_up())

    async def _catch_up(self) -> None:
        """Send what is behind, page by page and no faster than it is acknowledged, until level with the hub."""
        try:
            while await self.window.wait_for_room(ACK_TIMEOUT):
                lines, _ = await run_in_database(load_lines_after, dict(self.sent))
                await self._send(lines)
                # Nothing may be awaited from here on: the hub goes on where this has ended.
                if self._is_caught_up() and not self.window.is_full:
                    self.is_live = not self.is_closed
                    return
            await self.disconnect(CloseCode.SLOW)
        except Exception as error:
            log.exception("a client could not be given what it lacks")
            await self.disconnect(CloseCode.FAILED if classify_error(error) is None else CloseCode.UNREACHABLE)
