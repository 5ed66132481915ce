"""Jobs of the supervisor: dispatch intents and prompts, notice changes of the database, take over orphans."""

from __future__ import annotations

import asyncio
import contextlib
import uuid

from sessions_app.kernel import wakeups
from sessions_app.recovery.sweep.sweep_pass import SweepScope
from sessions_app.supervisor import leases
from sessions_app.supervisor.job import Job, Supervisor

POLL_EVERY = 2.0
"""Seconds between two checks whether the embedded database has changed, in case a wake-up was lost."""
POLL_SHARED_EVERY = 0.25
"""The same for a database of several hosts, between which more wake-ups are lost."""
RECHECK_AFTER = 0.05
"""Minimum seconds between two checks: while agents write, our own commits wake us all the time."""
ORPHANS_EVERY = 1.0
"""Seconds between two checks for sessions whose supervisor is gone."""


class DispatchJob(Job):
    """Wakes the queue of every session that has an open intent or an undelivered prompt."""

    name = "dispatch"

    async def run_step(self) -> None:
        """Dispatch what is due, and wait until more may be."""
        await self.supervisor.dispatcher.dispatch_pending()


class WatchDatabaseJob(Job):
    """Notices changes of the database: at once after a wake-up, else by polling its version."""

    name = "watch database"

    async def run_step(self) -> None:
        """Watch until it fails or is cancelled."""
        # Not in a thread: a task that is cancelled while the thread works would never get its socket.
        listener, loop = wakeups.open_listener(), asyncio.get_running_loop()
        version, longest = "", POLL_SHARED_EVERY if leases.is_shared_database() else POLL_EVERY
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(longest):
                        await loop.sock_recv(listener, 16)
                        # Here, too: what the same connection has written does not change the version.
                        self.registry.changes.record()
                changed = await self.registry.database(wakeups.database_version)
                if changed != version:
                    version = changed
                    self.registry.changes.record()
                    self.supervisor.dispatcher.announce_work()
                    await asyncio.sleep(RECHECK_AFTER)
                    # Later than the dispatcher: intents go first.
                    self.supervisor.database_changed.send()
        finally:
            wakeups.close_listener(listener)


class OrphansJob(Job):
    """Takes over sessions whose supervisor is provably dead or has let its lease expire."""

    name = "orphans"

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        self._known: set[tuple[uuid.UUID, str]] = set()
        """Orphans of the last check, with the supervisor that had them."""

    def is_enabled(self) -> bool:
        """Whether there may be other supervisors."""
        return leases.is_shared_database()

    async def run_step(self) -> None:
        """Sweep the orphans that are new."""
        await asyncio.sleep(ORPHANS_EVERY)
        # Each only once: if another supervisor takes it, we are done; if none can, the regular sweeps try again.
        orphans = await self.registry.database(leases.load_orphaned_sessions, self.registry.boot_id)
        new, self._known = orphans - self._known, orphans
        if new:
            await self.supervisor.sweep(SweepScope("reconcile", sessions={session_id for session_id, _ in new}))
            self.supervisor.dispatcher.announce_work()
