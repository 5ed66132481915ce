"""The supervisor: sweep at start, then carry out orders, renew leases and reconcile, until told to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable
from datetime import datetime

from django.conf import settings

from executors_app import crash_points
from executors_app.domain import Observed
from sessions_app.domain import acting
from sessions_app.models import wakeups
from sessions_app.services import restored
from sessions_app.supervisor import beat, deadlines, leases, lock, sleep
from sessions_app.supervisor.attachment import Attachment
from sessions_app.supervisor.core import Core
from sessions_app.supervisor.deaths import DeathWatch
from sessions_app.supervisor.export import Export
from sessions_app.supervisor.losses import Losses
from sessions_app.supervisor.orders import Orders
from sessions_app.supervisor.outage import Outage, is_outage
from sessions_app.supervisor.pace import Pace
from sessions_app.supervisor.start import admission
from sessions_app.supervisor.sweep import reporting, requested
from sessions_app.supervisor.sweep.one_pass import Decided, Scope, Sweep, sweep
from sessions_app.supervisor.tally import KEPT, TALLY
from sessions_app.supervisor.turns import overdue
from sessions_app.supervisor.turns.ignored_cancels import notice_ignored_cancels
from sessions_app.supervisor.turns.retries import due_retries
from sessions_app.supervisor.turns.stalls import notice_stalls
from sessions_app.supervisor.workflows.driver import Driver
from sessions_app.supervisor.workspace_sync import WorkspaceSync

log = logging.getLogger(__name__)
LOOK_EVERY = 0.25
"""Seconds between two looks for a changed database, whatever wake-ups come (rules, section 5a)."""
DEADLINES_EVERY = 1.0
"""Seconds between two looks for waits whose time is over."""
STALLS_EVERY = 15.0
"""Seconds at most between two looks for turns that are silent."""
LEFT_EVERY = 1.0
"""Seconds between two looks for sessions whose supervisor is gone."""
ADMIT_EVERY = 0.5
"""Seconds between two looks whose turn to be started has come."""
LOOK_AGAIN = 0.02
"""Seconds at least between two looks, however many wake-ups come."""


class Supervisor:
    """Carries out what the rows ask, for every session whose lease it can have."""

    def __init__(self) -> None:
        self.core = Core()
        self.orders = Orders(self.core)
        self.export = Export(self.core.boot_id)
        self.workflows = Driver(self.core)
        self.core.on_change = self._changed
        self.core.on_loss = self._lost
        self._deaths = DeathWatch(self.core, self._look_for)
        self._workspace_sync = WorkspaceSync(self.core.database, self.core.boot_id)
        self.unknown: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._bell = asyncio.Event()
        self._asked = asyncio.Event()
        self._losses = Losses()
        self._paces: dict[uuid.UUID, Pace] = {}
        self._due: frozenset[uuid.UUID] = frozenset()
        self._tries: frozenset[tuple[uuid.UUID, datetime]] = frozenset()
        self._left_behind: set[tuple[uuid.UUID, str]] = set()

    async def open(self) -> None:
        """Begin to beat and to renew; nothing is taken over yet. A restored database is made safe before."""
        acting.begin(owner=self.core.boot_id, cause="opening")
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
        self.core.grace.begin(settings.KANDEV_BOOT_GRACE)
        try:
            if first_sweep:
                await self.sweep(Scope("boot"))
            await self.core.database(beat.swept, self.core.boot_id)
            log.info("supervising: %d sessions attached", len(self.core.attachments))
            for job in (
                self._carry_out,
                self._listen,
                self._reconcile,
                self._catch_up_transfers,
                self._admit,
                self._look_after_losses,
                *([self._look_for_the_left_behind] if lock.is_shared() else []),
                self._sweep_on_request,
                self._keep_deadlines,
                self._notice_stalls,
                self._put_to_sleep,
                self._deaths.keep,
                self._keep_tally,
                self.export.go_on,
                self.workflows.keep,
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
        await self._workspace_sync.close()
        await self.workflows.close()
        await self.orders.close()
        await self.export.close()
        await self.core.give_back()
        crash_points.reached("shutdown.released")
        await self.core.database.at_the_end(TALLY.flush, self.core.boot_id)
        await self.core.database.at_the_end(beat.unregister, self.core.boot_id)
        crash_points.reached("shutdown.unregistered")
        await self.core.close()

    def _spawn(self, job: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(_for_ever(job, self.core.outage), name=job.__name__))

    async def _renew(self) -> None:
        await asyncio.sleep(settings.KANDEV_LEASE_TTL / 3)
        await self.core.database(beat.beat, self.core.boot_id)
        mine = await self.core.database(leases.renew, self.core.boot_id)
        await self.workflows.renew()
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
                    await asyncio.sleep(LOOK_AGAIN)
                    self._asked.set()  # orders have gone first
        finally:
            wakeups.close(listener)

    async def _reconcile(self) -> None:
        await asyncio.sleep(settings.KANDEV_RECONCILE_INTERVAL)
        await self.sweep(Scope("reconcile"))
        self._bell.set()

    async def _catch_up_transfers(self) -> None:
        """Let work arrive that a kill, or an engine that was away, has kept from it: at first after the boot sweep."""
        await self._workspace_sync.catch_up()
        await asyncio.sleep(settings.KANDEV_RECONCILE_INTERVAL)

    async def _admit(self) -> None:
        """Start those whose turn has come, and look after those whose next try is due, before a whole pass does."""
        await self.admit()
        before, self._tries = self._tries, await self.core.database(admission.due)
        for session_id, _ in self._tries - before:
            self._look_for(session_id)
        await asyncio.sleep(ADMIT_EVERY)

    async def admit(self) -> Sweep | None:
        """Start those whose turn has come; None where there is nobody."""
        picked = await self.core.database(admission.next_ones, self.core.boot_id, self.core.doors)
        if not picked:
            return None
        result = await self.sweep(Scope("reconcile", sessions=picked, admitted=True))
        stay = {item.row.stored.session_id for item in result.decided if _keeps_its_place(item, result)}
        await self.core.database(admission.leave, set(picked) - stay)
        self._bell.set()
        return result

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

    async def _keep_tally(self) -> None:
        await asyncio.sleep(KEPT)
        await self.core.database(TALLY.flush, self.core.boot_id)

    async def _notice_stalls(self) -> None:
        """Look for turns in which nothing is heard of the agent, or that outlive their cancel."""
        await asyncio.sleep(min(max(settings.KANDEV_STALL_NOTICE / 10, 0.2), STALLS_EVERY))
        held = {session_id: one.lease for session_id, one in self.core.attachments.items() if not one.ended}
        await self.core.database(notice_stalls, held)
        await self.core.database(notice_ignored_cancels, held)

    async def _put_to_sleep(self) -> None:
        """End the agents that have been idle for long."""
        await asyncio.sleep(sleep.pause())
        if await sleep.put_to_sleep(self.core):
            self._bell.set()

    async def _sweep_on_request(self) -> None:
        """One sweep that somebody asked for, or else the wait for a change of the database."""
        asked = await self.core.database(requested.next_request)
        if asked is None:
            await self._asked.wait()
            self._asked.clear()
            return
        async with requested.telling(self.core, asked) as progress:
            result = await sweep(self.core, requested.scope_of(asked), self.unknown, progress)
        await self.core.database(requested.settle, asked, result, self.core.boot_id)
        self._bell.set()

    def _changed(self, session_id: uuid.UUID) -> None:
        """A commit of ingest: orders may be due, and an agent that has gone is looked after at once."""
        self.orders.poke(session_id)
        attachment = self.core.attached(session_id)
        if attachment is None:
            return
        if attachment.turn_ended:
            attachment.turn_ended = False
            self.workflows.ring()
        if attachment.snapshot_taken:
            attachment.snapshot_taken = False
            self._workspace_sync.request(attachment.facts)
        if attachment.agent_gone:
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
        self._losses.tell({session_id})

    async def _look_after_losses(self) -> None:
        lost = await self._losses.take()
        try:
            result = await self.sweep(Scope("reconcile", sessions=lost))
        except Exception:
            self._losses.tell(lost)  # they are looked after when it can be done
            raise
        unknown = {one.row.stored.session_id for one in result.decided if one.seen.observed is Observed.UNKNOWN}
        self._losses.looked_at(lost, unknown)
        self._bell.set()

    async def _look_for_the_left_behind(self) -> None:
        """Take over at once what a supervisor that is provably gone has left, and what nobody has renewed."""
        await asyncio.sleep(LEFT_EVERY)
        found = await self.core.database(leases.left_behind, self.core.boot_id)
        new, self._left_behind = found - self._left_behind, found
        if new:
            await self.sweep(Scope("reconcile", sessions={session_id for session_id, _ in new}))
            self._bell.set()


def _keeps_its_place(item: Decided, result: Sweep) -> bool:
    """Whether it still waits for its turn, or another supervisor has it."""
    outcome = result.outcomes.get(item.facts.session_id)
    return item.decision.rule == "waits_for_turn" or bool(outcome and outcome.skipped)


async def _for_ever(job: Callable[[], Awaitable[None]], outage: Outage) -> None:
    """Repeat a job. Whatever misses the database waits for it with all others; any other failure is said once."""
    acting.begin(cause=job.__name__.strip("_").replace("_", " "))
    pace, said = Pace(), ""
    while True:
        try:
            await job()
            pace.succeeded()
        except Exception as error:
            if is_outage(error):
                await outage.wait(error)
                continue
            told = f"{type(error).__name__}: {error}"
            if pace.is_calm or told != said:
                log.exception("%s failed; trying again", job.__name__)
            said = told
            await asyncio.sleep(pace.failed())
