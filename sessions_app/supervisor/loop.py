"""The supervisor: sweep at start, then carry out orders, renew leases and reconcile, until told to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable

from django.conf import settings

from executors_app import crash_points
from sessions_app.models import wakeups
from sessions_app.services import restored
from sessions_app.supervisor import beat, deadlines, leases, lock
from sessions_app.supervisor.attachment import Attachment
from sessions_app.supervisor.core import Core
from sessions_app.supervisor.deaths import DeathWatch
from sessions_app.supervisor.export import Export
from sessions_app.supervisor.homecoming import Homecoming
from sessions_app.supervisor.orders import Orders
from sessions_app.supervisor.pace import Pace
from sessions_app.supervisor.sweep import reporting, requested
from sessions_app.supervisor.sweep.one_pass import Scope, Sweep, sweep
from sessions_app.supervisor.turns import overdue
from sessions_app.supervisor.turns.retries import due_retries
from sessions_app.supervisor.turns.stalls import notice_stalls

log = logging.getLogger(__name__)
LOOK_EVERY = 0.25
"""Seconds between two looks for a changed database, whatever wake-ups come (rules, section 5a)."""
DEADLINES_EVERY = 1.0
"""Seconds between two looks for waits whose time is over."""
STALLS_EVERY = 15.0
"""Seconds at most between two looks for turns that are silent."""
LEFT_EVERY = 1.0
"""Seconds between two looks for sessions whose supervisor is gone."""
LOOK_AGAIN = 0.02
"""Seconds at least between two looks, however many wake-ups come."""


class Supervisor:
    """Carries out what the rows ask, for every session whose lease it can have."""

    def __init__(self) -> None:
        self.core = Core()
        self.orders = Orders(self.core)
        self.export = Export(self.core.boot_id)
        self.core.on_change = self._changed
        self.core.on_loss = self._lost
        self._deaths = DeathWatch(self.core, self._look_for)
        self._homecoming = Homecoming()
        self.unknown: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._bell = asyncio.Event()
        self._asked = asyncio.Event()
        self._look_at = asyncio.Event()
        self._lost_sessions: set[uuid.UUID] = set()
        self._paces: dict[uuid.UUID, Pace] = {}
        self._due: frozenset[uuid.UUID] = frozenset()
        self._left_behind: set[tuple[uuid.UUID, str]] = set()

    async def open(self) -> None:
        """Begin to beat and to renew; nothing is taken over yet. A restored database is made safe before."""
        await self.core.database(restored.look_after)
        await self.core.database(beat.register, self.core.boot_id)
        self._spawn(self._renew)

    async def sweep(self, scope: Scope, **kwargs: object) -> Sweep:
        """One pass over what claims to run; stored, and followed by the orders it wrote."""
        result = await sweep(self.core, scope, self.unknown, **kwargs)  # type: ignore[arg-type]
        if not scope.dry_run:
            document = await self.core.database(reporting.report, result, self.core.boot_id)
            await self.core.database(reporting.store, document, result)
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
                *([self._look_for_the_left_behind] if lock.is_shared() else []),
                self._sweep_on_request,
                self._keep_deadlines,
                self._notice_stalls,
                self._deaths.keep,
                self.export.go_on,
            ):
                self._spawn(job)
            await stop.wait()
        finally:
            await self.close()

    async def close(self) -> None:
        """End what is under way and give the leases back (rule 18)."""
        crash_points.reached("shutdown.begun")
        self.core.on_loss = lambda attachment: None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._deaths.close()
        await self._homecoming.close()
        await self.orders.close()
        await self.export.close()
        await self.core.give_back()
        crash_points.reached("shutdown.released")
        await self.core.database(beat.unregister, self.core.boot_id)
        crash_points.reached("shutdown.unregistered")
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
        version = ""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY):
                        await loop.sock_recv(listener, 16)
                changed = await self.core.database(wakeups.database_version)
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

    async def _keep_deadlines(self) -> None:
        """End the waits whose time is over; keys that became unusable are made anew before the first look."""
        await self.core.database(deadlines.renew_keys)
        while True:
            if await self.core.database(deadlines.end_overdue):
                self._bell.set()
            await self.core.database(overdue.say_overdue)
            before, self._due = self._due, await self.core.database(due_retries)
            if self._due - before:
                self._bell.set()
            await asyncio.sleep(DEADLINES_EVERY)

    async def _notice_stalls(self) -> None:
        """Look for turns in which nothing is heard of the agent; late by a tenth of the time at most."""
        await asyncio.sleep(min(max(settings.KANDEV_STALL_NOTICE / 10, 0.2), STALLS_EVERY))
        held = {session_id: one.lease for session_id, one in self.core.attachments.items() if not one.ended}
        await self.core.database(notice_stalls, held)

    async def _sweep_on_request(self) -> None:
        """One sweep that somebody asked for, or else the wait for a change of the database."""
        asked = await self.core.database(requested.next_request)
        if asked is None:
            await self._asked.wait()
            self._asked.clear()
            return
        result = await sweep(self.core, requested.scope_of(asked), self.unknown)
        await self.core.database(requested.settle, asked, result, self.core.boot_id)
        self._bell.set()

    def _changed(self, session_id: uuid.UUID) -> None:
        """A commit of ingest: orders may be due, and an agent that has gone is looked after at once."""
        self.orders.poke(session_id)
        attachment = self.core.attached(session_id)
        if attachment is not None and attachment.snapshot_taken:
            attachment.snapshot_taken = False
            self._homecoming.due(attachment.facts)
        if attachment is not None and attachment.agent_gone:
            attachment.agent_gone = False
            self._lost(attachment)

    def _lost(self, attachment: Attachment) -> None:
        """A stream ended by itself: its session is looked at now, not at the next pass.

        One that ends again and again, whatever is done about it, is looked at after ever longer pauses.
        """
        pace = self._paces.setdefault(attachment.session_id, Pace())
        pause = 0.0 if pace.is_calm else pace.rest
        pace.failed()
        asyncio.get_running_loop().call_later(pause, self._look_for, attachment.session_id)

    def _look_for(self, session_id: uuid.UUID) -> None:
        self._lost_sessions.add(session_id)
        self._look_at.set()

    async def _look_after_losses(self) -> None:
        await self._look_at.wait()
        self._look_at.clear()
        lost = frozenset(self._lost_sessions)
        try:
            await self.sweep(Scope("reconcile", sessions=lost))
        except Exception:
            self._look_at.set()  # they are looked after when it can be done
            raise
        self._lost_sessions -= lost
        self._bell.set()

    async def _look_for_the_left_behind(self) -> None:
        """Take over at once what a supervisor that is provably gone has left, and what nobody has renewed."""
        await asyncio.sleep(LEFT_EVERY)
        found = await self.core.database(leases.left_behind, self.core.boot_id)
        new, self._left_behind = found - self._left_behind, found
        if new:
            await self.sweep(Scope("reconcile", sessions={session_id for session_id, _ in new}))
            self._bell.set()


async def _for_ever(job: Callable[[], Awaitable[None]]) -> None:
    """Repeat a job; one that fails is told of and tried again."""
    while True:
        try:
            await job()
        except Exception:
            log.exception("%s failed; trying again", job.__name__)
            await asyncio.sleep(1)
