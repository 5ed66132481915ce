"""The supervisor process: sweep at start, then run jobs concurrently until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Protocol

from django.conf import settings
from django.utils import timezone

from executors_app.backoff import Backoff
from executors_app.machine import crash_points
from executors_app.wire.executions import Observed
from sessions_app.agents.installed_programs import InstalledPrograms
from sessions_app.agents.services import agent_setup
from sessions_app.kernel import actor_context, wakeups
from sessions_app.metrics.counters import FLUSH_EVERY, METRICS_BUFFER
from sessions_app.portable import database_restore
from sessions_app.portable.exporter import ExportJob
from sessions_app.prompts import overdue
from sessions_app.recovery import sweep_reports
from sessions_app.recovery.recheck_queue import ExitEventListener, RecheckQueue
from sessions_app.recovery.sweep.sweep_pass import DecidedRow, SweepRun, SweepScope, run_sweep
from sessions_app.starts import admission, idle_sleep
from sessions_app.stream.stream_news import News
from sessions_app.supervisor import leases
from sessions_app.supervisor.change_counter import seconds_until
from sessions_app.supervisor.database_outage import DatabaseOutage, is_database_outage
from sessions_app.supervisor.dispatcher import Dispatcher
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.execution_stream import ExecutionStream
from sessions_app.turns.retries import load_due_retries
from sessions_app.turns.silence import end_work_outside_turns, report_ignored_cancels, report_stalled_turns
from sessions_app.waits import expiry
from sessions_app.workspace.workspace_sync import WorkspaceSync

log = logging.getLogger(__name__)
POLL_EVERY = 2.0
"""Seconds between two checks whether the embedded database has changed, in case a wake-up was lost."""
POLL_SHARED_EVERY = 0.25
"""The same for a database of several hosts, between which more wake-ups are lost."""
DEADLINES_EVERY = 1.0
"""Minimum seconds between two checks for waits that have expired; without any, it waits for a change."""
STALLS_EVERY = 15.0
"""Maximum seconds between two checks for silent turns and ignored cancels."""
ORPHANS_EVERY = 1.0
"""Seconds between two checks for sessions whose supervisor is gone."""
ADMIT_EVERY = 0.5
"""Minimum seconds between two checks of the start queue; while it is empty, it waits for a change."""
AGENT_SETUP_EVERY = 5.0
"""Minimum seconds between two checks for finished tests of agents and for programs that were installed."""
RECHECK_AFTER = 0.05
"""Minimum seconds between two checks: while agents write, our own commits wake us all the time."""

Job = Callable[[], Awaitable[None]]
"""One step of something that the supervisor repeats until it stops."""


class Extension(Protocol):
    """What a feature above the supervisor runs in its process, as workflow runs do."""

    name: str
    """Names its job in logs and in the cause of its events."""

    async def run_once(self) -> None:
        """Take one step, then wait until there may be another; the loop repeats it."""

    async def renew(self) -> None:
        """Renew its own leases, together with the supervisor's."""

    def wake(self) -> None:
        """A turn has ended: whatever waits for it can continue."""

    async def close(self) -> None:
        """Stop, and release its leases."""


class SupervisorLoop:
    """Carries out the intents and prompts of every session whose lease it holds, and sweeps."""

    def __init__(self, extensions: Sequence[Callable[[ExecutionRegistry], Extension]] = ()) -> None:
        self.registry = ExecutionRegistry(self)
        self.dispatcher = Dispatcher(self.registry)
        self.exporter = ExportJob(self.registry.boot_id, self.registry.changes)
        self.extensions = [extension(self.registry) for extension in extensions]
        self._exit_events = ExitEventListener(self.registry, self._request_recheck)
        self._workspace_sync = WorkspaceSync(self.registry.database, self.registry.boot_id)
        self.unknown: set[str] = set()
        """Executions that the last sweep could not observe."""
        self._tasks: list[asyncio.Task[None]] = []
        self._work_available = asyncio.Event()
        self._database_changed = asyncio.Event()
        self._recheck_queue = RecheckQueue()
        self._backoffs: dict[uuid.UUID, Backoff] = {}
        self._due_retries: frozenset[uuid.UUID] = frozenset()
        self._due_restarts: frozenset[tuple[uuid.UUID, datetime]] = frozenset()
        self._orphans: set[tuple[uuid.UUID, str]] = set()
        self._installed_programs = InstalledPrograms()
        self._is_closing = False

    async def open(self) -> None:
        """Register this supervisor and start renewing its leases; nothing is taken over yet."""
        actor_context.begin_context(owner=self.registry.boot_id, cause="opening")
        # Before anything can be sent: prompts of a restored database may have been delivered already.
        await self.registry.database(database_restore.detect_restore)
        await self.registry.database(leases.register_supervisor, self.registry.boot_id)
        self._spawn("renew leases", self._renew_leases)

    async def sweep(self, scope: SweepScope, **kwargs: object) -> SweepRun:
        """Sweep once and store the result. The starts and stops that it decides on are written as intents."""
        result = await run_sweep(self.registry, scope, self.unknown, **kwargs)  # type: ignore[arg-type]
        if result.decided or result.damaged:  # otherwise it has changed nothing, and paused checks need not run again
            self.registry.changes.record()
        if not scope.dry_run:
            document = await self.registry.database(sweep_reports.build_report, result, self.registry.boot_id)
            await self.registry.database(sweep_reports.store_sweep, document, result)
        return result

    def jobs(self) -> dict[str, Job]:
        """Every job that runs until the supervisor stops, by name; a job that is switched off is left out."""
        jobs: dict[str, Job] = {
            "dispatch": self._dispatch_pending_work,
            "watch database": self._watch_database,
            "reconcile": self._sweep_at_intervals,
            "transfers": self._catch_up_on_transfers,
            "start queue": self._start_queued_sessions,
            "recheck": self._recheck_sessions,
            "requested sweeps": self._run_requested_sweeps,
            "deadlines": self._enforce_deadlines,
            "stalls": self._report_stalls,
            "exit events": self._exit_events.refresh_listeners,
            "agent setup": self._follow_agent_setup,
            "metrics": self._flush_metrics,
            "export": self.exporter.run_step,
            **{extension.name: extension.run_once for extension in self.extensions},
        }
        if leases.is_shared_database():
            jobs["orphans"] = self._take_over_orphans
        if settings.KANDEV_IDLE_SLEEP:
            jobs["idle sleep"] = self._sleep_idle_sessions
        return jobs

    async def run(self, stop: asyncio.Event, *, first_sweep: bool = True) -> None:
        """Supervise until ``stop`` is set, then release all leases. Agents keep running."""
        await self.open()
        self.registry.grace.begin(settings.KANDEV_BOOT_GRACE)
        try:
            if first_sweep:
                await self.sweep(SweepScope("boot"))
            await self.registry.database(leases.mark_first_sweep_done, self.registry.boot_id)
            log.info("supervising: %d sessions attached", len(self.registry.streams))
            for name, job in self.jobs().items():
                self._spawn(name, job)
            await stop.wait()
        finally:
            await self.close()

    async def close(self) -> None:
        """Cancel all jobs and release the leases, so that the next supervisor need not wait for them to expire."""
        crash_points.reached("shutdown.begun")
        # Streams that end from here on are ended by us: their sessions need no recheck.
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._exit_events.close()
        await self._workspace_sync.close()
        for extension in self.extensions:
            await extension.close()
        await self.dispatcher.close()
        await self.exporter.close()
        await self.registry.release_all()
        crash_points.reached("shutdown.released")
        await self.registry.database.run_at_shutdown(METRICS_BUFFER.flush, self.registry.boot_id)
        # Last: as long as our row is there, our leases count as those of a living supervisor.
        await self.registry.database.run_at_shutdown(leases.unregister_supervisor, self.registry.boot_id)
        crash_points.reached("shutdown.unregistered")
        await self.registry.close()

    def _spawn(self, name: str, job: Job) -> None:
        self._tasks.append(asyncio.create_task(_repeat_forever(name, job, self.registry.outage), name=name))

    async def _renew_leases(self) -> None:
        """Renew at a third of a lease's lifetime, so that two renewals may fail before it expires."""
        await asyncio.sleep(settings.KANDEV_LEASE_TTL / 3)
        await self.registry.database(leases.record_heartbeat, self.registry.boot_id)
        mine = await self.registry.database(leases.renew_leases, self.registry.boot_id)
        for extension in self.extensions:
            await extension.renew()
        for stream in list(self.registry.streams.values()):
            # The lease expired before we renewed it, and another supervisor took it: this stream's writes would fail.
            if uuid.UUID(stream.facts.id) not in mine:
                log.warning("session %s: another supervisor has its lease now", stream.session_id)
                await self.registry.close_stream(stream.session_id)

    async def _dispatch_pending_work(self) -> None:
        # Cleared before the rows are read: what is written during the read sets it again, and is read next time.
        self._work_available.clear()
        await self.dispatcher.wake_pending()
        await self._work_available.wait()

    async def _watch_database(self) -> None:
        """Notice changes of the database: at once after a wake-up, else by polling its version."""
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
                    self._work_available.set()
                    await asyncio.sleep(RECHECK_AFTER)
                    # Later than the dispatcher: intents go first.
                    self._database_changed.set()
        finally:
            wakeups.close_listener(listener)

    async def _sweep_at_intervals(self) -> None:
        await asyncio.sleep(settings.KANDEV_RECONCILE_INTERVAL)
        await self.sweep(SweepScope("reconcile"))
        self._work_available.set()

    async def _catch_up_on_transfers(self) -> None:
        """Push snapshots whose transfer was cut short by a kill or by an unreachable engine."""
        await self._workspace_sync.catch_up()
        await asyncio.sleep(settings.KANDEV_RECONCILE_INTERVAL)

    async def _start_queued_sessions(self) -> None:
        """Start the next sessions of the start queue, and recheck those whose next restart is due."""
        seen = self.registry.changes.count
        await self.start_queued_sessions()
        checked_at = timezone.now()
        due = await self.registry.database(admission.load_due_restarts, checked_at)
        # Once for each due time: a session that cannot start yet would otherwise be rechecked twice a second.
        newly_due, self._due_restarts = due - self._due_restarts, due
        for session_id, _ in newly_due:
            self._request_recheck(session_id)
        await asyncio.sleep(ADMIT_EVERY)
        # What falls due during this pause was not in the list above, so it must end the rest at once.
        next_due = await self.registry.database(admission.next_start_due, checked_at)
        await self.registry.changes.rest(seen, seconds_until(next_due))

    async def start_queued_sessions(self) -> SweepRun | None:
        """Start the sessions whose turn has come; None if there are none."""
        due = await self.registry.database(admission.load_next_starts, self.registry.boot_id, self.registry.start_slots)
        if not due:
            return None
        result = await self.sweep(SweepScope("reconcile", sessions=due, admitted=True))
        stay = {item.row.stored.session_id for item in result.decided if _is_still_waiting(item, result)}
        await self.registry.database(admission.leave_start_queue, set(due) - stay)
        self._work_available.set()
        return result

    async def _enforce_deadlines(self) -> None:
        """Expire waits and report overdue prompts; wait tokens that became unusable are replaced first."""
        _, checked = await self.registry.database(expiry.renew_tokens)
        while checked:
            _, checked = await self.registry.database(expiry.renew_tokens, checked)
        while True:
            seen = self.registry.changes.count
            if await self.registry.database(expiry.expire_waits):
                self._work_available.set()
            await self.registry.database(overdue.report_overdue_prompts)
            before, self._due_retries = self._due_retries, await self.registry.database(load_due_retries)
            if self._due_retries - before:
                self._work_available.set()
            await asyncio.sleep(DEADLINES_EVERY)
            await self.registry.changes.rest(seen, seconds_until(await self.registry.database(expiry.next_deadline)))

    async def _follow_agent_setup(self) -> None:
        """Stop finished tests of agents, and start sessions again whose agent has been installed."""
        seen = self.registry.changes.count
        await asyncio.sleep(AGENT_SETUP_EVERY)
        if not self._installed_programs.is_watching:
            await self.registry.changes.rest(seen)
        stopped = await self.registry.database(agent_setup.stop_finished_tests)
        if stopped + await self.registry.database(self._installed_programs.retry_sessions):
            self._work_available.set()

    async def _flush_metrics(self) -> None:
        await asyncio.sleep(FLUSH_EVERY)
        if METRICS_BUFFER.has_counts:
            await self.registry.database(METRICS_BUFFER.flush, self.registry.boot_id)

    async def _report_stalls(self) -> None:
        """Report silent turns, and turns that outlive their cancel."""
        # Without a stall notice there are still ignored cancels to report, which are not urgent.
        notice = settings.KANDEV_STALL_NOTICE
        await asyncio.sleep(min(max(notice / 10, 0.2), STALLS_EVERY) if notice else STALLS_EVERY)
        held = {session_id: one.lease for session_id, one in self.registry.streams.items() if not one.ended}
        await self.registry.database(report_stalled_turns, held)
        await self.registry.database(report_ignored_cancels, held)
        await self.registry.database(end_work_outside_turns, held)

    async def _sleep_idle_sessions(self) -> None:
        """Put sessions to sleep whose agents have been idle for ``KANDEV_IDLE_SLEEP``."""
        await asyncio.sleep(idle_sleep.check_interval())
        if await idle_sleep.sleep_idle_sessions(self.registry):
            self._work_available.set()

    async def _run_requested_sweeps(self) -> None:
        """Run the oldest requested sweep; without one, wait until the database changes."""
        request = await self.registry.database(sweep_reports.next_request)
        if request is None:
            await self._database_changed.wait()
            # Cleared before the rows are read again, so that no change after that read is missed.
            self._database_changed.clear()
            return
        async with sweep_reports.progress_writer(self.registry, request) as progress:
            result = await run_sweep(self.registry, sweep_reports.request_scope(request), self.unknown, progress)
        await self.registry.database(sweep_reports.settle_request, request, result, self.registry.boot_id)
        self._work_available.set()

    def handle_news(self, stream: ExecutionStream, news: Sequence[News]) -> None:
        """Recheck a session whose agent is gone; otherwise wake its queues and whoever waits for its turn."""
        if News.TURN_COMPLETED in news:
            self._backoffs.pop(stream.session_id, None)  # its agent works: its next end begins a new series
        if News.TURN_ENDED in news:
            for extension in self.extensions:
                extension.wake()
        if News.SNAPSHOT_TAKEN in news:
            self._workspace_sync.request(stream.facts)
        if News.AGENT_GONE in news:  # its queues are woken after the recheck: before, they would only delay it
            self.handle_lost_stream(stream)
        else:
            self.wake_session(stream.session_id)

    def handle_lost_stream(self, stream: ExecutionStream) -> None:
        """Recheck the session of a stream that ended unexpectedly: at once, with back-off if that keeps happening."""
        if self._is_closing:
            return
        backoff = self._backoffs.setdefault(stream.session_id, Backoff())
        pause = 0.0 if backoff.is_reset else backoff.remaining
        backoff.record_failure()
        if pause:
            asyncio.get_running_loop().call_later(pause, self._request_recheck, stream.session_id)
        else:
            self._request_recheck(stream.session_id)

    def wake_session(self, session_id: uuid.UUID) -> None:
        """Run the session's open intents and its next prompt."""
        self.dispatcher.wake(session_id)

    def start_session(self, session_id: uuid.UUID, intent_id: uuid.UUID | None) -> None:
        """Carry out a start that a sweep has ordered."""
        self.dispatcher.wake(session_id, overtakes=False, start=intent_id)

    def _request_recheck(self, session_id: uuid.UUID) -> None:
        self._recheck_queue.add({session_id})

    async def _recheck_sessions(self) -> None:
        sessions = await self._recheck_queue.take()
        try:
            with self.registry.changes.urgent():
                result = await self.sweep(SweepScope("reconcile", sessions=sessions))
        except Exception:
            self._recheck_queue.add(sessions)  # taken out already: a failed sweep must not lose them
            raise
        unknown = {one.row.stored.session_id for one in result.decided if one.seen.observed is Observed.UNKNOWN}
        self._recheck_queue.record_result(sessions, unknown)
        self._work_available.set()

    async def _take_over_orphans(self) -> None:
        """Take over sessions whose supervisor is provably dead or has let its lease expire."""
        await asyncio.sleep(ORPHANS_EVERY)
        # Each only once: if another supervisor takes it, we are done; if none can, the regular sweeps try again.
        found = await self.registry.database(leases.load_orphaned_sessions, self.registry.boot_id)
        new, self._orphans = found - self._orphans, found
        if new:
            await self.sweep(SweepScope("reconcile", sessions={session_id for session_id, _ in new}))
            self._work_available.set()


def _is_still_waiting(item: DecidedRow, result: SweepRun) -> bool:
    """Whether the session keeps its place in the start queue, or another supervisor has it."""
    outcome = result.outcomes.get(item.facts.session_id)
    return item.decision.rule == "waits_for_turn" or bool(outcome and outcome.skipped)


async def _repeat_forever(name: str, job: Job, outage: DatabaseOutage) -> None:
    """Repeat a job. During a database outage all jobs wait together; any other failure is logged once and retried."""
    actor_context.begin_context(cause=name)
    backoff, logged = Backoff(), ""
    while True:
        try:
            await job()
            backoff.reset()
        except Exception as error:
            if is_database_outage(error):
                await outage.wait(error)
                continue
            failure = f"{type(error).__name__}: {error}"
            if backoff.is_reset or failure != logged:
                log.exception("the job %s failed; trying again", name)
            logged = failure
            await asyncio.sleep(backoff.record_failure())
