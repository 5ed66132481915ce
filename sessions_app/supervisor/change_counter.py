"""Pauses periodic checks while nothing changes in the database, and wakes those who wait for a change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from django.utils import timezone

REST: Final = 30.0
"""Maximum seconds between two checks, because the clock may be changed and a change may be missed."""

POSTPONED: Final = 1.0
"""Maximum seconds that a check is postponed while agents are being restarted."""


class ChangeCounter:
    """Counts the changes of the database that this process has noticed. A job remembers the count before it reads."""

    def __init__(self) -> None:
        self.count = 0
        self._waiters: set[asyncio.Event] = set()
        self._urgent = 0
        self._calm = asyncio.Event()
        self._calm.set()

    @contextmanager
    def urgent(self) -> Iterator[None]:
        """Postpone paused checks until the block ends: an agent is being restarted, and they share its thread."""
        self._urgent += 1
        self._calm.clear()
        try:
            yield
        finally:
            self._urgent -= 1
            if not self._urgent:
                self._calm.set()

    def record(self) -> None:
        """Record a change, which ends all rests."""
        self.count += 1
        for waiter in self._waiters:
            waiter.set()

    async def rest(self, count: int, longest: float = REST) -> None:
        """Wait until there are more changes than ``count``, at most ``longest`` seconds, and nothing is urgent."""
        if self.count == count:
            await self._wait_for_change(longest)
        try:
            async with asyncio.timeout(POSTPONED):
                await self._calm.wait()
        except TimeoutError:
            pass

    async def _wait_for_change(self, longest: float) -> None:
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(longest):
                await waiter.wait()
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(waiter)


class Signal:
    """Wakes the one job that waits for it; one that is sent while nobody waits is kept."""

    def __init__(self) -> None:
        self._sent = asyncio.Event()

    def send(self) -> None:
        """Wake the job that waits, or let its next wait return at once."""
        self._sent.set()

    async def wait(self) -> None:
        """Wait until it has been sent since the last wait."""
        await self._sent.wait()
        # Cleared before the caller reads rows, so that no change after that read is missed.
        self._sent.clear()


def seconds_until(due: datetime | None) -> float:
    """Return the seconds to rest until ``due``, at most ``REST``; a time that has passed counts as now."""
    if due is None:
        return REST
    return min(max((due - timezone.now()).total_seconds(), 0.0), REST)
