"""The job of the search: keep the index behind the log, a little at a time."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from sessions_app.kernel.database_threads import DatabaseThread
from sessions_app.search.indexer import Indexer
from sessions_app.supervisor.job import Job, Supervisor

PASS_EVERY: Final = 2.0
"""Minimum seconds between two checks for changes: what agents say in between is written at once."""
TASKS_EVERY: Final = 10.0
"""Minimum seconds between two checks for changed tasks and secrets."""
MIN_PAUSE: Final = 4.0
"""The pause after a step, as a multiple of the time that the step took: ingest comes first."""
MAX_PAUSE: Final = 5.0
"""Maximum seconds of a pause."""
STEP_LIMIT: Final = 60.0
"""Seconds after which a step executes no further statement; its transaction is rolled back, and tried again."""


class SearchIndexJob(Job):
    """Runs the indexer on its own database thread."""

    name = "search index"

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        self._indexer = Indexer()
        self._thread = DatabaseThread("search", limit=STEP_LIMIT)
        self._tasks_due = 0.0
        """When tasks and secrets may be compared again (monotonic clock)."""
        self._tasks_seen = -1
        """The count of changes up to which they were."""

    async def run_step(self) -> None:
        """Take one pass, then pause; without work, until the database changes."""
        changes = self.registry.changes.count
        began = time.monotonic()
        has_more = await self._thread(self._indexer.index_sessions)
        if self._tasks_seen != changes and began >= self._tasks_due:
            has_more_tasks = await self._thread(self._indexer.index_tasks)
            has_outdated = await self._thread(self._indexer.forget_outdated)
            if has_more_tasks or has_outdated:
                has_more = True
            else:
                self._tasks_due, self._tasks_seen = time.monotonic() + TASKS_EVERY, changes
        pause = min(MIN_PAUSE * (time.monotonic() - began), MAX_PAUSE)
        if has_more:
            await asyncio.sleep(pause)
            return
        await asyncio.sleep(max(pause, PASS_EVERY))
        if self._tasks_seen == changes:
            await self.registry.changes.rest(changes)
        else:
            await self.registry.changes.rest(changes, max(self._tasks_due - time.monotonic(), 0.0))

    async def finish(self) -> None:
        """Close the thread's connection."""
        self._thread.close()
