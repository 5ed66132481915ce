"""The job of the export: keep the portable record of all sessions up to date."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from sessions_app.kernel.database_threads import DatabaseThread
from sessions_app.portable.exporter import Exporter
from sessions_app.supervisor.job import Job, Supervisor

POLL_EVERY: Final = 0.5
"""Minimum seconds between two checks for changes when there is nothing to write."""
MIN_PAUSE: Final = 9.0
"""The pause after a step, as a multiple of the time that the step took."""
MAX_PAUSE: Final = 10.0
"""Maximum seconds of a pause."""
STEP_LIMIT: Final = 60.0
"""Seconds after which a step executes no further statement; what it did not export is tried again later."""
FINISH_WITHIN: Final = 3.0
"""Seconds that a shutdown may spend on exports; the next start does the rest."""


class ExportJob(Job):
    """Runs the exporter on its own database thread."""

    name = "export"

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        self._exporter = Exporter(self.registry.boot_id)
        self._thread = DatabaseThread("export", limit=STEP_LIMIT)
        self._has_started = False

    async def run_step(self) -> None:
        """Take one step, then pause; without work, until the database changes."""
        self._has_started = True
        began, changes = time.monotonic(), self.registry.changes.count
        has_more = await self._thread(self._exporter.step)
        pause = min(MIN_PAUSE * (time.monotonic() - began), MAX_PAUSE)
        if has_more:
            await asyncio.sleep(pause)
            return
        await asyncio.sleep(max(pause, POLL_EVERY))
        if self._exporter.is_idle:
            await self.registry.changes.rest(changes)

    async def finish(self) -> None:
        """Export what is missing for up to ``FINISH_WITHIN`` seconds, then release the locks."""
        deadline = time.monotonic() + FINISH_WITHIN
        while self._has_started and await self._thread(self._exporter.step, final=True) and time.monotonic() < deadline:
            pass
        await self._thread(self._exporter.close)
        self._thread.close()
