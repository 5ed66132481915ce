"""The shared wait of a supervisor for a database that is unavailable."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from django.conf import settings
from django.db import Error, connection

from executors_app.backoff import Backoff
from sessions_app.kernel.database_errors import classify_error
from sessions_app.kernel.database_threads import DatabaseThread

log = logging.getLogger(__name__)
STABLE_AFTER: Final = 5.0
"""Seconds without a failure after which an outage is over: a database on a full disk answers, but cannot write."""


def is_database_outage(error: BaseException) -> bool:
    """Whether ``error`` means that the database is unreachable, busy or full, and not that our code is wrong."""
    return classify_error(error) is not None


class DatabaseOutage:
    """The one wait of a supervisor for its database, shared by all its jobs.

    However many jobs wait, one connection is tried at a time, with back-off.
    """

    def __init__(self, database: DatabaseThread):
        self._database = database
        self._backoff = Backoff()
        self._began = 0.0
        """When the outage began, by the monotonic clock; 0: there is none."""
        self._asking: asyncio.Task[None] | None = None
        self._over: asyncio.TimerHandle | None = None

    async def wait(self, error: BaseException) -> None:
        """Return when the database answers again; ``error`` is what revealed the outage."""
        self._is_still_out()
        if not self._began:
            self._began = time.monotonic()
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            log.error("the database cannot be used, waiting for it: %s", reason)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="outage")
        # Shielded: cancelling one waiter must not cancel the task that the others wait for.
        await asyncio.shield(self._asking)

    async def close(self) -> None:
        """Cancel the wait."""
        self._is_still_out()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        while True:
            # At most a third of a lease, so that our leases can still be renewed when the database is back.
            await asyncio.sleep(min(self._backoff.record_failure(), settings.KANDEV_LEASE_TTL / 3))
            try:
                await self._database(_database_answers)
            except Error:
                continue
            seconds = time.monotonic() - self._began
            self._over = asyncio.get_running_loop().call_later(STABLE_AFTER, self._end, seconds)
            return

    def _end(self, seconds: float) -> None:
        log.warning("the database can be used again, after %.1f s", seconds)
        self._began = 0.0
        self._backoff.reset()

    def _is_still_out(self) -> None:
        if self._over is not None:
            self._over.cancel()
            self._over = None


def _database_answers() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
