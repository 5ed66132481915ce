"""The job of placement: look again for what starts wait for."""

from __future__ import annotations

import asyncio
from typing import Final

from sessions_app.placement import start_claims
from sessions_app.supervisor import leases
from sessions_app.supervisor.job import Job

LOOK_EVERY: Final = 10.0
"""Seconds between two looks: a repository that comes onto a disk changes nothing in the database."""


class PlacementJob(Job):
    """Tries starts again that wait for a host or a repository."""

    name = "placement"

    def is_enabled(self) -> bool:
        """Whether there may be several hosts."""
        return leases.is_shared_database()

    async def run_step(self) -> None:
        """Wait, and have the starts tried again."""
        await asyncio.sleep(LOOK_EVERY)
        if await self.registry.database(start_claims.has_waiting_starts):
            self.supervisor.dispatcher.announce_work()
