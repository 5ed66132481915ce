"""The supervisor: sweep at start, then carry out orders, renew leases and reconcile, until told to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable

from django.conf import settings
from django.db import connection

from sessions_app.models import wakeups
from sessions_app.supervisor import beat, leases, sweep_report, sweep_requests
from sessions_app.supervisor.attachment import Attachment
from sessions_app.supervisor.core import Core
from sessions_app.supervisor.orders import Orders
from sessions_app.supervisor.sweep import Scope, Sweep, sweep

log = logging.getLogger(__name__)
LOOK_EVERY = 0.25
"""Seconds between two looks for a changed database, whatever wake-ups come (rules, section 5a)."""
LOOK_AGAIN = 0.02
"""Seconds at least between two looks, however many wake-ups come."""


class Supervisor:
    """Carries out what the rows ask, for every session whose lease it can have."""

    def __init__(self) -> None:
        self.core = Core()
        self.orders = Orders(self.core)
        self.core.on_change = self._changed
        self.core.on_loss = self._lost
        self.unknown: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._bell = asyncio.Event()
        self._asked = asyncio.Event()
        self._look_at = asyncio.Event()
        self._lost_sessions: set[uuid.UUID] = set()

    async def open(self) -> None:
        """Begin to beat and to renew; nothing is taken over yet."""
        await self.core.database(beat.register, self.core.boot_id)
        self._spawn(self._renew)

    async def sweep(self, scope: Scope, **kwargs: object) -> Sweep:
        """One pass over what claims to run; stored, and followed by the orders it wrote."""
        result = await sweep(self.core, scope, self.unknown, **kwargs)  # type: ignore[arg-type]
        if not scope.dry_run:
            document = await self.core.database(sweep_report.report, result, self.core.boot_id)
            await self.core.database(sweep_report.store, document, result)
        return result

    async def run(self, stop: asyncio.Event, *, first_sweep: bool = True) -> None:
        """Supervise until ``stop``; then give everything back. Agents go on."""
        await self.open()
        try:
            if first_sweep:
                await self.sweep(Scope("boot"))
            await self.core.database(beat.swept, self.core.boot_id)
            log.info("supervising: %d sessions attached", len(self.core.attachments))
            for job in (
                self._carry_out,
                self._listen,
                self._reconcile,
                self._look_after_losses,
                self._sweep_on_request,
            ):
                self._spawn(job)
            await stop.wait()
        finally:
            await self.close()

    async def close(self) -> None:
        """End what is under way and give the leases back (rule 18)."""
        self.core.on_loss = lambda attachment: None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.orders.close()
        await self.core.database(beat.unregister, self.core.boot_id)
        await self.core.close()

    def _spawn(self, job: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(_for_ever(job), name=job.__name__))

    async def _renew(self) -> None:
        await asyncio.sleep(settings.KANDEV_LEASE_TTL / 3)
        await self.core.database(beat.beat, self.core.boot_id)
        mine = await self.core.database(leases.renew, self.core.boot_id)
        for attachment in list(self.core.attachments.values()):
            if uuid.UUID(attachment.facts.id) not in mine:
                log.warning("session %s: its lease is somebody else's now", attachment.session_id)
                await self.core.detach(attachment.session_id)

    async def _carry_out(self) -> None:
        await self.orders.look()
        self._bell.clear()
        await self._bell.wait()

    async def _listen(self) -> None:
        """Ring the bell after wake-ups and, by the clock, after any change of the database."""
        listener, loop = await asyncio.to_thread(wakeups.listen), asyncio.get_running_loop()
        version = 0
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY):
                        await loop.sock_recv(listener, 16)
                changed = await self.core.database(data_version)
                if changed != version:
                    version = changed
                    self._bell.set()
                    self._asked.set()
                    await asyncio.sleep(LOOK_AGAIN)
        finally:
            wakeups.close(listener)

    async def _reconcile(self) -> None:
        await asyncio.sleep(settings.KANDEV_RECONCILE_INTERVAL)
        await self.sweep(Scope("reconcile"))
        self._bell.set()

    async def _sweep_on_request(self) -> None:
        """One sweep that somebody asked for, or else the wait for a change of the database."""
        asked = await self.core.database(sweep_requests.next_request)
        if asked is None:
            await self._asked.wait()
            self._asked.clear()
            return
        result = await sweep(self.core, sweep_requests.scope_of(asked), self.unknown)
        await self.core.database(sweep_requests.settle, asked, result, self.core.boot_id)
        self._bell.set()

    def _changed(self, session_id: uuid.UUID) -> None:
        """A commit of ingest: orders may be due, and an agent that has gone is looked after at once."""
        self.orders.poke(session_id)
        attachment = self.core.attached(session_id)
        if attachment is not None and attachment.agent_gone:
            attachment.agent_gone = False
            self._lost(attachment)

    def _lost(self, attachment: Attachment) -> None:
        """A stream ended by itself: its session is looked at now, not at the next pass."""
        self._lost_sessions.add(attachment.session_id)
        self._look_at.set()

    async def _look_after_losses(self) -> None:
        await self._look_at.wait()
        self._look_at.clear()
        lost, self._lost_sessions = self._lost_sessions, set()
        await self.sweep(Scope("reconcile", sessions=lost))
        self._bell.set()


async def _for_ever(job: Callable[[], Awaitable[None]]) -> None:
    """Repeat a job; one that fails is told of and tried again."""
    while True:
        try:
            await job()
        except Exception:
            log.exception("%s failed; trying again", job.__name__)
            await asyncio.sleep(1)


_ticks = iter(range(1, 1 << 62))


def data_version() -> int:
    """A number that changes when another connection has written; on PostgreSQL at every look."""
    if connection.vendor != "sqlite":
        return next(_ticks)
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA data_version")
        row = cursor.fetchone()
    return int(row[0])
