"""Exponential back-off between retries, and the shared wait for a database that is unavailable."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from django.conf import settings
from django.db import Error, connection

from sessions_app.models.database_errors import classify_error
from sessions_app.services.database_threads import DatabaseThread

INITIAL_DELAY: Final = 0.2
MAX_DELAY: Final = 10.0
RESET_AFTER: Final = 60.0
"""Seconds without a failure after which the next one counts as the first."""


class Backoff:
    """Pauses of 0.2 s, doubled up to 10 s; a success, or a minute of peace, forgets them."""

    def __init__(self) -> None:
        self._failures = 0
        self._not_before = 0.0

    @property
    def rest(self) -> float:
        """Seconds until the pause after the last failure is over; 0 when it is."""
        return max(0.0, self._not_before - time.monotonic())

    @property
    def rests(self) -> bool:
        """The pause after the last failure is not over."""
        return self.rest > 0

    @property
    def is_reset(self) -> bool:
        """Nothing has failed of late."""
        return self._failures == 0 or time.monotonic() - self._not_before > RESET_AFTER

    def failed(self) -> float:
        """Begin the next pause; its seconds."""
        if self.is_reset:
            self._failures = 0
        seconds = min(MAX_DELAY, INITIAL_DELAY * float(2**self._failures))
        self._failures = min(self._failures + 1, 10)
        self._not_before = time.monotonic() + seconds
        return seconds

    def succeeded(self) -> None:
        """Begin anew with the shortest pause."""
        self._failures, self._not_before = 0, 0.0


log = logging.getLogger(__name__)
STABLE_AFTER: Final = 5.0
"""Seconds without another failure after which an outage is over: a full disk answers questions and takes nothing."""


def is_database_outage(error: BaseException) -> bool:
    """Whether ``error`` comes of a database that is away, busy or full, and of no mistake of ours."""
    return classify_error(error) is not None


class DatabaseOutage:
    """The one wait of a supervisor for its database: one connection is tried at a time, after growing pauses."""

    def __init__(self, database: DatabaseThread):
        self._database = database
        self._pace = Backoff()
        self._began = 0.0
        """When it began, by the monotonic clock; 0: there is none."""
        self._asking: asyncio.Task[None] | None = None
        self._over: asyncio.TimerHandle | None = None

    async def wait(self, error: BaseException) -> None:
        """Return when it makes sense to try again; ``error`` is what told of the outage."""
        self._is_still_out()
        if not self._began:
            self._began = time.monotonic()
            told = next(iter(str(error).strip().splitlines()), type(error).__name__)
            log.error("the database cannot be used, waiting for it: %s", told)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="outage")
        # Shielded: one waiter that is cancelled takes the answer from no other.
        await asyncio.shield(self._asking)

    async def close(self) -> None:
        """End the wait."""
        self._is_still_out()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        while True:
            # Well within a lease: whoever comes back late would find its leases taken.
            await asyncio.sleep(min(self._pace.failed(), settings.KANDEV_LEASE_TTL / 3))
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
        self._pace.succeeded()

    def _is_still_out(self) -> None:
        if self._over is not None:
            self._over.cancel()
            self._over = None


def _database_answers() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
