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
from executors_app.backoff import Backoff
from executors_app.domain import Observed
from sessions_app.domain import actor_context
from sessions_app.models import wakeups
from sessions_app.services import database_restore
from sessions_app.services.metric_counters import FLUSH_EVERY, METRICS_BUFFER
from sessions_app.supervisor import admission, idle_sleep, leases, sweep_reports, watchdogs
from sessions_app.supervisor.database_outage import DatabaseOutage, is_database_outage
from sessions_app.supervisor.dispatcher import Dispatcher
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.execution_stream import ExecutionStream
from sessions_app.supervisor.exporter import ExportJob
from sessions_app.supervisor.interrupted_turns import load_due_retries
from sessions_app.supervisor.recheck_queue import ExitEventListener, RecheckQueue
from sessions_app.supervisor.sweep.sweep_pass import DecidedRow, SweepRun, SweepScope, run_sweep
from sessions_app.supervisor.watchdogs import report_ignored_cancels, report_stalled_turns
from sessions_app.supervisor.workspace_sync import WorkspaceSync
from sessions_app.workflows.driver.driver import WorkflowDriver

log = logging.getLogger(__name__)
POLL_EVERY = 0.25
"""Seconds between two looks for a changed database, whatever wake-ups come (rules, section 5a)."""
DEADLINES_EVERY = 1.0
"""Seconds between two looks for waits whose time is over."""
STALLS_EVERY = 15.0
"""Seconds at most between two looks for turns that are silent."""
ORPHANS_EVERY = 1.0
"""Seconds between two looks for sessions whose supervisor is gone."""
ADMIT_EVERY = 0.5
"""Seconds between two looks whose turn to be started has come."""
RECHECK_AFTER = 0.02
"""Seconds at least between two looks, however many wake-ups come."""


class SupervisorLoop:
    """Carries out what the rows ask, for every session whose lease it can have."""

    def __init__(self) -> None:
        self.core = ExecutionRegistry()
        self.orders = Dispatcher(self.core)
        self.export = ExportJob(self.core.boot_id)
        self.workflows = WorkflowDriver(self.core)
        self.core.on_change = self._changed
        self.core.on_stream_lost = self._lost
        self._deaths = ExitEventListener(self.core, self._look_for)
        self._workspace_sync = WorkspaceSync(self.core.database, self.core.boot_id)
        self.unknown: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._bell = asyncio.Event()
        self._asked = asyncio.Event()
        self._losses = RecheckQueue()
        self._backoffs: dict[uuid.UUID, Backoff] = {}
        self._due: frozenset[uuid.UUID] = frozenset()
        self._tries: frozenset[tuple[uuid.UUID, datetime]] = frozenset()
        self._left_behind: set[tuple[uuid.UUID, str]] = set()

    async def open(self) -> None:
        """Begin to beat and to renew; nothing is taken over yet. A restored database is made safe before."""
        actor_context.begin_context(owner=self.core.boot_id, cause="opening")
        await self.core.database(database_restore.detect_restore)
        await self.core.database(leases.register_supervisor, self.core.boot_id)
        self._spawn(self._renew)

    async def sweep(self, scope: SweepScope, **kwargs: object) -> SweepRun:
        """One pass over what claims to run; stored, and followed by the orders it wrote."""
        result = await run_sweep(self.core, scope, self.unknown, **kwargs)  # type: ignore[arg-type]
        if not scope.dry_run:
            document = await self.core.database(sweep_reports.build_report, result, self.core.boot_id)
            await self.core.database(sweep_reports.store_sweep, document, result)
        return result

    async def run(self, stop: asyncio.Event, *, first_sweep: bool = True) -> None:
        """Supervise until ``stop``; then give everything back. Agents go on."""
        await self.open()
        self.core.grace.begin(settings.KANDEV_BOOT_GRACE)
        try:
            if first_sweep:
                await self.sweep(SweepScope("boot"))
            await self.core.database(leases.mark_first_sweep_done, self.core.boot_id)
            log.info("supervising: %d sessions attached", len(self.core.attachments))
            for job in (
                self._carry_out,
                self._listen,
                self._reconcile,
                self._catch_up_transfers,
                self._admit,
                self._look_after_losses,
                *([self._look_for_the_left_behind] if leases.is_shared_database() else []),
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
        self.core.on_stream_lost = lambda attachment: None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._deaths.close()
        await self._workspace_sync.close()
        await self.workflows.close()
        await self.orders.close()
        await self.export.close()
        await self.core.release_all()
        crash_points.reached("shutdown.released")
        await self.core.database.at_the_end(METRICS_BUFFER.flush, self.core.boot_id)
        await self.core.database.at_the_end(leases.unregister_supervisor, self.core.boot_id)
        crash_points.reached("shutdown.unregistered")
        await self.core.close()

    def _spawn(self, job: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(_repeat_forever(job, self.core.outage), name=job.__name__))

    async def _renew(self) -> None:
        await asyncio.sleep(settings.KANDEV_LEASE_TTL / 3)
        await self.core.database(leases.record_heartbeat, self.core.boot_id)
        mine = await self.core.database(leases.renew_leases, self.core.boot_id)
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
        # Not in a thread: a task that is cancelled while the thread works would never learn of its socket.
        listener, loop = wakeups.open_listener(), asyncio.get_running_loop()
        version = ""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_EVERY):
                        await loop.sock_recv(listener, 16)
                changed = await self.core.database(wakeups.database_version)
                if changed != version:
                    version = changed
                    self._bell.set()
                    await asyncio.sleep(RECHECK_AFTER)
                    self._asked.set()  # orders have gone first
        finally:
            wakeups.close_listener(listener)

    async def _reconcile(self) -> None:
        await asyncio.sleep(settings.KANDEV_RECONCILE_INTERVAL)
        await self.sweep(SweepScope("reconcile"))
        self._bell.set()

    async def _catch_up_transfers(self) -> None:
        """Let work arrive that a kill, or an engine that was away, has kept from it: at first after the boot sweep."""
        await self._workspace_sync.catch_up()
        await asyncio.sleep(settings.KANDEV_RECONCILE_INTERVAL)

    async def _admit(self) -> None:
        """Start those whose turn has come, and look after those whose next try is due, before a whole pass does."""
        await self.admit()
        before, self._tries = self._tries, await self.core.database(admission.load_due_restarts)
        for session_id, _ in self._tries - before:
            self._look_for(session_id)
        await asyncio.sleep(ADMIT_EVERY)

    async def admit(self) -> SweepRun | None:
        """Start those whose turn has come; None where there is nobody."""
        picked = await self.core.database(admission.load_next_starts, self.core.boot_id, self.core.start_slots)
        if not picked:
            return None
        result = await self.sweep(SweepScope("reconcile", sessions=picked, admitted=True))
        stay = {item.row.stored.session_id for item in result.decided if _still_waits(item, result)}
        await self.core.database(admission.leave_start_queue, set(picked) - stay)
        self._bell.set()
        return result

    async def _keep_deadlines(self) -> None:
        """End the waits whose time is over; keys that became unusable are made anew before the first look."""
        await self.core.database(watchdogs.renew_tokens)
        while True:
            if await self.core.database(watchdogs.expire_waits):
                self._bell.set()
            await self.core.database(watchdogs.report_overdue_prompts)
            before, self._due = self._due, await self.core.database(load_due_retries)
            if self._due - before:
                self._bell.set()
            await asyncio.sleep(DEADLINES_EVERY)

    async def _keep_tally(self) -> None:
        await asyncio.sleep(FLUSH_EVERY)
        await self.core.database(METRICS_BUFFER.flush, self.core.boot_id)

    async def _notice_stalls(self) -> None:
        """Look for turns in which nothing is heard of the agent, or that outlive their cancel."""
        await asyncio.sleep(min(max(settings.KANDEV_STALL_NOTICE / 10, 0.2), STALLS_EVERY))
        held = {session_id: one.lease for session_id, one in self.core.attachments.items() if not one.ended}
        await self.core.database(report_stalled_turns, held)
        await self.core.database(report_ignored_cancels, held)

    async def _put_to_sleep(self) -> None:
        """End the agents that have been idle for long."""
        await asyncio.sleep(idle_sleep.check_interval())
        if await idle_sleep.sleep_idle_sessions(self.core):
            self._bell.set()

    async def _sweep_on_request(self) -> None:
        """One sweep that somebody asked for, or else the wait for a change of the database."""
        asked = await self.core.database(sweep_reports.next_request)
        if asked is None:
            await self._asked.wait()
            self._asked.clear()
            return
        async with sweep_reports.progress_writer(self.core, asked) as progress:
            result = await run_sweep(self.core, sweep_reports.request_scope(asked), self.unknown, progress)
        await self.core.database(sweep_reports.settle_request, asked, result, self.core.boot_id)
        self._bell.set()

    def _changed(self, session_id: uuid.UUID) -> None:
        """A commit of ingest: orders may be due, and an agent that has gone is looked after at once."""
        self.orders.wake(session_id)
        attachment = self.core.attached(session_id)
        if attachment is None:
            return
        if attachment.turn_ended:
            attachment.turn_ended = False
            self.workflows.ring()
        if attachment.has_new_snapshot:
            attachment.has_new_snapshot = False
            self._workspace_sync.request(attachment.facts)
        if attachment.agent_gone:
            attachment.agent_gone = False
            self._lost(attachment)

    def _lost(self, attachment: ExecutionStream) -> None:
        """A stream ended by itself: its session is looked at now, not at the next pass.

        One that ends again and again, whatever is done about it, is looked at after ever longer pauses.
        """
        backoff = self._backoffs.setdefault(attachment.session_id, Backoff())
        pause = 0.0 if backoff.is_reset else backoff.remaining
        backoff.record_failure()
        asyncio.get_running_loop().call_later(pause, self._look_for, attachment.session_id)

    def _look_for(self, session_id: uuid.UUID) -> None:
        self._losses.tell({session_id})

    async def _look_after_losses(self) -> None:
        lost = await self._losses.take()
        try:
            result = await self.sweep(SweepScope("reconcile", sessions=lost))
        except Exception:
            self._losses.tell(lost)  # they are looked after when it can be done
            raise
        unknown = {one.row.stored.session_id for one in result.decided if one.seen.observed is Observed.UNKNOWN}
        self._losses.record_result(lost, unknown)
        self._bell.set()

    async def _look_for_the_left_behind(self) -> None:
        """Take over at once what a supervisor that is provably gone has left, and what nobody has renewed."""
        await asyncio.sleep(ORPHANS_EVERY)
        found = await self.core.database(leases.load_orphaned_sessions, self.core.boot_id)
        new, self._left_behind = found - self._left_behind, found
        if new:
            await self.sweep(SweepScope("reconcile", sessions={session_id for session_id, _ in new}))
            self._bell.set()


def _still_waits(item: DecidedRow, result: SweepRun) -> bool:
    """Whether it still waits for its turn, or another supervisor has it."""
    outcome = result.outcomes.get(item.facts.session_id)
    return item.decision.rule == "waits_for_turn" or bool(outcome and outcome.skipped)


async def _repeat_forever(job: Callable[[], Awaitable[None]], outage: DatabaseOutage) -> None:
    """Repeat a job. Whatever misses the database waits for it with all others; any other failure is said once."""
    actor_context.begin_context(cause=job.__name__.strip("_").replace("_", " "))
    backoff, said = Backoff(), ""
    while True:
        try:
            await job()
            backoff.reset()
        except Exception as error:
            if is_database_outage(error):
                await outage.wait(error)
                continue
            told = f"{type(error).__name__}: {error}"
            if backoff.is_reset or told != said:
                log.exception("%s failed; trying again", job.__name__)
            said = told
            await asyncio.sleep(backoff.record_failure())
