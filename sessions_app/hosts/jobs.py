"""The jobs of a supervisor for its host: its signs of life, and what people have decided about the host."""

from __future__ import annotations

import asyncio

from sessions_app.hosts import cordons, draining
from sessions_app.hosts.heartbeats import Heartbeat
from sessions_app.hosts.models import Role
from sessions_app.hosts.rules.life_signs import BEAT_EVERY
from sessions_app.supervisor.change_counter import REST
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


MAINTENANCE_EVERY = 1.0
"""Minimum seconds between two looks at what was decided about this host."""
DRAIN_EVERY = 2.0
"""Maximum seconds between two looks while sessions of a draining host run: what ends in them may change no row."""


class MaintenanceJob(Job):
    """Does what people have decided about this host: stops its sessions, or lets them be resumed."""

    name = "host maintenance"

    async def run_step(self) -> None:
        """Do what was decided, and wait until more may be due."""
        changes = self.registry.changes.count
        is_draining = await self.registry.database(cordons.is_draining_here)
        is_left = False
        if is_draining:
            is_left = await draining.stop_sessions_at_rest(self.registry)
            self.supervisor.dispatcher.announce_work()
        else:
            self.supervisor.rechecks.add(await self.registry.database(draining.release_drained_sessions))
        await asyncio.sleep(MAINTENANCE_EVERY)
        await self.registry.changes.rest(changes, DRAIN_EVERY if is_left else REST)
