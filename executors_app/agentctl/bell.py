"""Waiting for a change of state inside one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Bell:
    """Wakes everybody who waits for a condition, each time something changed."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Tell that something changed."""
        waiting, self._waiting = self._waiting, set()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; it is looked at now and after each ring."""
        while not condition():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(waiter)
            try:
                await waiter
            finally:
                self._waiting.discard(waiter)
