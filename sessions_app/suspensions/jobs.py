"""The job of suspensions: let sessions go on whose suspension is over."""

from __future__ import annotations

import asyncio
from typing import Final

from sessions_app.supervisor.change_counter import seconds_until
from sessions_app.supervisor.job import Job
from sessions_app.suspensions import services

CHECK_EVERY: Final = 1.0
"""Minimum seconds between two checks; without a suspension, it waits for a change."""


class SuspensionsJob(Job):
    """Lets suspended sessions go on at their time."""

    name = "suspensions"

    async def run_step(self) -> None:
        """Let go on what is due, and wait until the next one is."""
        changes = self.registry.changes.count
        if await self.registry.database(services.end_due_suspensions):
            self.supervisor.dispatcher.announce_work()
        await asyncio.sleep(CHECK_EVERY)
        await self.registry.changes.rest(changes, seconds_until(await self.registry.database(services.next_wake)))
