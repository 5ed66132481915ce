"""The jobs of a supervisor for its host: its signs of life, and what people have decided about the host."""

from __future__ import annotations

import asyncio

from sessions_app.hosts import cordons, draining, losses, returns
from sessions_app.hosts.heartbeats import Heartbeat
from sessions_app.hosts.intervals import beat_every
from sessions_app.hosts.models import Role
from sessions_app.hosts.troubles import TroubleWatch
from sessions_app.kernel.guarded_jobs import guard_job
from sessions_app.supervisor.change_counter import REST
from sessions_app.supervisor.job import Job, Supervisor


class HeartbeatJob(Job):
    """Records that this supervisor is there, for people; leases have a heartbeat of their own, by which they end."""

    name = "heartbeat"

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        self._heartbeat = Heartbeat(Role.SUPERVISOR)
        self._troubles = TroubleWatch()

    async def run_step(self) -> None:
        """Record a sign of life, and wait until the next one is due."""
        # Not in the database's thread: a file system that hangs would keep the supervisor from its leases.
        measured = await asyncio.to_thread(self._heartbeat.measure)
        await self.registry.database(self._heartbeat.beat, measured)
        await self.registry.database(self._troubles.look_if_due)
        await asyncio.sleep(beat_every())

    async def finish(self) -> None:
        """Record the end."""
        await self.registry.database.run_at_shutdown(self._heartbeat.end)


MAINTENANCE_EVERY = 1.0
"""Minimum seconds between two looks at what was decided about this host."""
DRAIN_EVERY = 2.0
"""Maximum seconds between two looks while sessions of a draining host run or end: that may change no row."""


class MaintenanceJob(Job):
    """Does what people have decided about this host: stops its sessions, or lets them be resumed."""

    name = "host maintenance"

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        self._may_have_drained = True
        """Whether sessions may have been stopped for this host that are not released yet."""
        self._may_run_lost = False
        """Whether something that was ended as lost may still run here, although this host is not the lost one by name.
        """

    async def prepare(self) -> None:
        """End what this host still runs although it was declared lost, before anything is claimed."""
        await returns.end_lost_executions(self.registry)

    async def run_step(self) -> None:
        """Do what was decided, and wait until more may be due."""
        changes = self.registry.changes.count
        orders = await self.registry.database(cordons.load_standing_orders)
        if orders.is_another_lost:
            await self._end_lost_elsewhere()
        if orders.here.lost or self._may_run_lost:
            self._may_run_lost = not await returns.end_lost_executions(self.registry)
        is_left = False
        if orders.here.draining:
            self._may_have_drained = True
            is_left = await draining.stop_sessions_at_rest(self.registry)
            self.supervisor.dispatcher.announce_work()
        elif self._may_have_drained:
            is_left = await self._release_drained()
        await asyncio.sleep(MAINTENANCE_EVERY)
        await self.registry.changes.rest(changes, DRAIN_EVERY if is_left else REST)

    async def _release_drained(self) -> bool:
        """Let the sessions be resumed that were stopped for this host; return whether some are still being stopped."""
        while released := await self.registry.database(draining.release_drained_sessions):
            self.supervisor.rechecks.add(released)
        self._may_have_drained = await self.registry.database(draining.has_drained_sessions)
        return self._may_have_drained

    async def _end_lost_elsewhere(self) -> None:
        """End the executions of hosts that were declared lost, in case whoever declared it could not."""
        for lost in await self.registry.database(losses.load_lost):
            is_here = await asyncio.to_thread(losses.is_work_here, lost)
            if await self.registry.database(guard_job, lost.session_id, "its lost host", _end_lost, lost, is_here):
                self._may_run_lost = True
                self.supervisor.dispatcher.announce_work()


def _end_lost(lost: losses.LostExecution, is_here: bool) -> bool:
    return losses.end_lost(lost, is_here=is_here)
