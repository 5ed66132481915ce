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
        self.registry = ExecutionRegistry()
        self.dispatcher = Dispatcher(self.registry)
        self.exporter = ExportJob(self.registry.boot_id)
        self.workflows = WorkflowDriver(self.registry)
        self.registry.on_change = self._on_stream_change
        self.registry.on_stream_lost = self._on_stream_lost
        self._exit_events = ExitEventListener(self.registry, self._request_recheck)
        self._workspace_sync = WorkspaceSync(self.registry.database, self.registry.boot_id)
        self.unknown: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._work_available = asyncio.Event()
        self._database_changed = asyncio.Event()
        self._recheck_queue = RecheckQueue()
        self._backoffs: dict[uuid.UUID, Backoff] = {}
        self._due_retries: frozenset[uuid.UUID] = frozenset()
        self._due_restarts: frozenset[tuple[uuid.UUID, datetime]] = frozenset()
        self._orphans: set[tuple[uuid.UUID, str]] = set()

    async def open(self) -> None:
        """Begin to beat and to renew; nothing is taken over yet. A restored database is made safe before."""
        actor_context.begin_context(owner=self.registry.boot_id, cause="opening")
        await self.registry.database(database_restore.detect_restore)
        await self.registry.database(leases.register_supervisor, self.registry.boot_id)
        self._spawn(self._renew_leases)

    async def sweep(self, scope: SweepScope, **kwargs: object) -> SweepRun:
        """One pass over what claims to run; stored, and followed by the orders it wrote."""
        result = await run_sweep(self.registry, scope, self.unknown, **kwargs)  # type: ignore[arg-type]
        if not scope.dry_run:
            document = await self.registry.database(sweep_reports.build_report, result, self.registry.boot_id)
            await self.registry.database(sweep_reports.store_sweep, document, result)
        return result

    async def run(self, stop: asyncio.Event, *, first_sweep: bool = True) -> None:
        """Supervise until ``stop``; then give everything back. Agents go on."""
        await self.open()
        self.registry.grace.begin(settings.KANDEV_BOOT_GRACE)
        try:
            if first_sweep:
                await self.sweep(SweepScope("boot"))
            await self.registry.database(leases.mark_first_sweep_done, self.registry.boot_id)
            log.info("supervising: %d sessions attached", len(self.registry.streams))
            for job in (
                self._dispatch_pending_work,
                self._watch_database,
                self._sweep_at_intervals,
                self._catch_up_on_transfers,
                self._start_queued_sessions,
                self._recheck_sessions,
                *([self._take_over_orphans] if leases.is_shared_database() else []),
                self._run_requested_sweeps,
                self._enforce_deadlines,
                self._report_stalls,
                self._sleep_idle_sessions,
                self._exit_events.refresh_listeners,
                self._flush_metrics,
                self.exporter.run_step,
                self.workflows.keep,
            ):
                self._spawn(job)
            await stop.wait()
        finally:
            await self.close()

    async def close(self) -> None:
        """End what is under way and give the leases back (rule 18)."""
        crash_points.reached("shutdown.begun")
        self.registry.on_stream_lost = lambda stream: None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._exit_events.close()
        await self._workspace_sync.close()
        await self.workflows.close()
        await self.dispatcher.close()
        await self.exporter.close()
        await self.registry.release_all()
        crash_points.reached("shutdown.released")
        await self.registry.database.at_the_end(METRICS_BUFFER.flush, self.registry.boot_id)
        await self.registry.database.at_the_end(leases.unregister_supervisor, self.registry.boot_id)
        crash_points.reached("shutdown.unregistered")
        await self.registry.close()

    def _spawn(self, job: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(_repeat_forever(job, self.registry.outage), name=job.__name__))

    async def _renew_leases(self) -> None:
        await asyncio.sleep(settings.KANDEV_LEASE_TTL / 3)
        await self.registry.database(leases.record_heartbeat, self.registry.boot_id)
        mine = await self.registry.database(leases.renew_leases, self.registry.boot_id)
        await self.workflows.renew()
        for stream in list(self.registry.streams.values()):
            if uuid.UUID(stream.facts.id) not in mine:
                log.warning("session %s: its lease is somebody else's now", stream.session_id)
                await self.registry.close_stream(stream.session_id)

    async def _dispatch_pending_work(self) -> None:
        await self.dispatcher.wake_pending()
        self._work_available.clear()
        await self._work_available.wait()

    async def _watch_database(self) -> None:
        """Ring the bell after wake-ups and, by the clock, after any change of the database."""
        # Not in a thread: a task that is cancelled while the thread works would never learn of its socket.
        listener, loop = wakeups.open_listener(), asyncio.get_running_loop()
        version = ""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_EVERY):
                        await loop.sock_recv(listener, 16)
                changed = await self.registry.database(wakeups.database_version)
                if changed != version:
                    version = changed
                    self._work_available.set()
                    await asyncio.sleep(RECHECK_AFTER)
                    self._database_changed.set()  # orders have gone first
        finally:
            wakeups.close_listener(listener)

    async def _sweep_at_intervals(self) -> None:
        await asyncio.sleep(settings.KANDEV_RECONCILE_INTERVAL)
        await self.sweep(SweepScope("reconcile"))
        self._work_available.set()

    async def _catch_up_on_transfers(self) -> None:
        """Let work arrive that a kill, or an engine that was away, has kept from it: at first after the boot sweep."""
        await self._workspace_sync.catch_up()
        await asyncio.sleep(settings.KANDEV_RECONCILE_INTERVAL)

    async def _start_queued_sessions(self) -> None:
        """Start those whose turn has come, and look after those whose next try is due, before a whole pass does."""
        await self.start_queued_sessions()
        before, self._due_restarts = self._due_restarts, await self.registry.database(admission.load_due_restarts)
        for session_id, _ in self._due_restarts - before:
            self._request_recheck(session_id)
        await asyncio.sleep(ADMIT_EVERY)

    async def start_queued_sessions(self) -> SweepRun | None:
        """Start those whose turn has come; None where there is nobody."""
        due = await self.registry.database(admission.load_next_starts, self.registry.boot_id, self.registry.start_slots)
        if not due:
            return None
        result = await self.sweep(SweepScope("reconcile", sessions=due, admitted=True))
        stay = {item.row.stored.session_id for item in result.decided if _is_still_waiting(item, result)}
        await self.registry.database(admission.leave_start_queue, set(due) - stay)
        self._work_available.set()
        return result

    async def _enforce_deadlines(self) -> None:
        """End the waits whose time is over; keys that became unusable are made anew before the first look."""
        await self.registry.database(watchdogs.renew_tokens)
        while True:
            if await self.registry.database(watchdogs.expire_waits):
                self._work_available.set()
            await self.registry.database(watchdogs.report_overdue_prompts)
            before, self._due_retries = self._due_retries, await self.registry.database(load_due_retries)
            if self._due_retries - before:
                self._work_available.set()
            await asyncio.sleep(DEADLINES_EVERY)

    async def _flush_metrics(self) -> None:
        await asyncio.sleep(FLUSH_EVERY)
        await self.registry.database(METRICS_BUFFER.flush, self.registry.boot_id)

    async def _report_stalls(self) -> None:
        """Look for turns in which nothing is heard of the agent, or that outlive their cancel."""
        await asyncio.sleep(min(max(settings.KANDEV_STALL_NOTICE / 10, 0.2), STALLS_EVERY))
        held = {session_id: one.lease for session_id, one in self.registry.streams.items() if not one.ended}
        await self.registry.database(report_stalled_turns, held)
        await self.registry.database(report_ignored_cancels, held)

    async def _sleep_idle_sessions(self) -> None:
        """End the agents that have been idle for long."""
        await asyncio.sleep(idle_sleep.check_interval())
        if await idle_sleep.sleep_idle_sessions(self.registry):
            self._work_available.set()

    async def _run_requested_sweeps(self) -> None:
        """One sweep that somebody request for, or else the wait for a change of the database."""
        request = await self.registry.database(sweep_reports.next_request)
        if request is None:
            await self._database_changed.wait()
            self._database_changed.clear()
            return
        async with sweep_reports.progress_writer(self.registry, request) as progress:
            result = await run_sweep(self.registry, sweep_reports.request_scope(request), self.unknown, progress)
        await self.registry.database(sweep_reports.settle_request, request, result, self.registry.boot_id)
        self._work_available.set()

    def _on_stream_change(self, session_id: uuid.UUID) -> None:
        """A commit of ingest: orders may be due, and an agent that has gone is looked after at once."""
        self.dispatcher.wake(session_id)
        stream = self.registry.stream_of(session_id)
        if stream is None:
            return
        if stream.turn_ended:
            stream.turn_ended = False
            self.workflows.ring()
        if stream.has_new_snapshot:
            stream.has_new_snapshot = False
            self._workspace_sync.request(stream.facts)
        if stream.agent_gone:
            stream.agent_gone = False
            self._on_stream_lost(stream)

    def _on_stream_lost(self, stream: ExecutionStream) -> None:
        """A stream ended by itself: its session is looked at now, not at the next pass.

        One that ends again and again, whatever is done about it, is looked at after ever longer pauses.
        """
        backoff = self._backoffs.setdefault(stream.session_id, Backoff())
        pause = 0.0 if backoff.is_reset else backoff.remaining
        backoff.record_failure()
        asyncio.get_running_loop().call_later(pause, self._request_recheck, stream.session_id)

    def _request_recheck(self, session_id: uuid.UUID) -> None:
        self._recheck_queue.add({session_id})

    async def _recheck_sessions(self) -> None:
        sessions = await self._recheck_queue.take()
        try:
            result = await self.sweep(SweepScope("reconcile", sessions=sessions))
        except Exception:
            self._recheck_queue.add(sessions)  # they are looked after when it can be done
            raise
        unknown = {one.row.stored.session_id for one in result.decided if one.seen.observed is Observed.UNKNOWN}
        self._recheck_queue.record_result(sessions, unknown)
        self._work_available.set()

    async def _take_over_orphans(self) -> None:
        """Take over at once what a supervisor that is provably gone has left, and what nobody has renewed."""
        await asyncio.sleep(ORPHANS_EVERY)
        found = await self.registry.database(leases.load_orphaned_sessions, self.registry.boot_id)
        new, self._orphans = found - self._orphans, found
        if new:
            await self.sweep(SweepScope("reconcile", sessions={session_id for session_id, _ in new}))
            self._work_available.set()


def _is_still_waiting(item: DecidedRow, result: SweepRun) -> bool:
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
