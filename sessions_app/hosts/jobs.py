"""The job of the signs of life of a supervisor."""

from __future__ import annotations

import asyncio

from sessions_app.hosts.heartbeats import Heartbeat
from sessions_app.hosts.models import Role
from sessions_app.hosts.rules.life_signs import BEAT_EVERY
from sessions_app.supervisor.job import Job, Supervisor


class HeartbeatJob(Job):
    """Records that this supervisor is there, for people; leases have a heartbeat of their own, by which they end."""

    name = "heartbeat"

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        self._heartbeat = Heartbeat(Role.SUPERVISOR)

    async def run_step(self) -> None:
        """Record a sign of life, and wait until the next one is due."""
        await self.registry.database(self._heartbeat.beat)
        await asyncio.sleep(BEAT_EVERY)

    async def finish(self) -> None:
        """Record the end."""
        await self.registry.database.run_at_shutdown(self._heartbeat.end)
