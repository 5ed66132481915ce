"""Lets periodic checks rest while nothing changes in the database."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Final

from django.utils import timezone

REST: Final = 15.0
"""Seconds at most between two checks, whatever was noticed: the clock may be set, and a change may be missed."""


class ChangeCounter:
    """Counts the changes of the database that this process has noticed. A job remembers the count before it reads."""

    def __init__(self) -> None:
        self.count = 0
        self._waiters: set[asyncio.Event] = set()

    def record(self) -> None:
        """Record a change, which ends all rests."""
        self.count += 1
        for waiter in self._waiters:
            waiter.set()

    async def rest(self, seen: int, longest: float = REST) -> None:
        """Wait until there are more changes than ``seen``, at most ``longest`` seconds."""
        if self.count != seen:
            return
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(longest):
                await waiter.wait()
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(waiter)


def seconds_until(due: datetime | None) -> float:
    """Return the seconds to rest until ``due``, at most ``REST``; a time that has passed counts as now."""
    if due is None:
        return REST
    return min(max((due - timezone.now()).total_seconds(), 0.0), REST)
