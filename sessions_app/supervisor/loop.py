"""The supervisor process: sweep at start, then run jobs concurrently until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence

from django.conf import settings

from executors_app.backoff import Backoff
from executors_app.machine import crash_points
from sessions_app.jobs import JOBS
from sessions_app.kernel import actor_context
from sessions_app.kernel.beat_file import BeatFile
from sessions_app.metrics.counters import METRICS_BUFFER
from sessions_app.portable import database_restore
from sessions_app.recovery.recheck_queue import RecheckQueue
from sessions_app.recovery.sweep import sweep_pass
from sessions_app.recovery.sweep.sweep_pass import (
    ProgressCallback,
    SweepRun,
    SweepScope,
    ignore_progress,
    run_sweep,
)
from sessions_app.stream.stream_news import News
from sessions_app.supervisor import leases
from sessions_app.supervisor.change_counter import Signal
from sessions_app.supervisor.database_outage import DatabaseOutage, is_database_outage
from sessions_app.supervisor.dispatcher import Dispatcher
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.execution_stream import ExecutionStream

log = logging.getLogger(__name__)


class SupervisorLoop:
    """Carries out the intents and prompts of every session whose lease it holds, and sweeps.

    What it does again and again are jobs of the topics (``sessions_app.jobs``), to which it is the ``Supervisor``.
    """

    def __init__(self) -> None:
        self.registry = ExecutionRegistry(self)
        self.dispatcher = Dispatcher(self.registry)
        self.rechecks = RecheckQueue()
        self.database_changed = Signal()
        self.unknown: set[str] = set()
        self._beat_file = BeatFile()
        self.jobs = [job(self) for job in JOBS]
        self._has_swept = False
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Register this supervisor and start renewing its leases; nothing is taken over yet."""
        actor_context.begin_context(owner=self.registry.boot_id, cause="opening")
        # Before anything can be sent: prompts of a restored database may have been delivered already.
        await self.registry.database(database_restore.detect_restore)
        await self.registry.database(leases.register_supervisor, self.registry.boot_id)
        self._spawn("renew leases", self._renew_leases)
        for job in self.jobs:
            await job.prepare()

    async def sweep(self, scope: SweepScope, *, progress: ProgressCallback = ignore_progress) -> SweepRun:
        """Sweep once and store the result. The starts and stops that it decides on are written as intents."""
        result = await run_sweep(self.registry, scope, self.unknown, progress)
        if result.decided or result.damaged:  # otherwise it has changed nothing, and paused checks need not run again
            self.registry.changes.record()
        if scope.dry_run:
            return result
        document = await self.registry.database(sweep_pass.build_report, result, self.registry.boot_id)
        await self.registry.database(sweep_pass.store_sweep, document, result)
        if scope.covers_all and not self._has_swept:
            # Not without a sweep: pages and commands that wait for it take it for a look at every row.
            await self.registry.database(leases.mark_first_sweep_done, self.registry.boot_id)
            self._has_swept = True
        return result

    async def run(self, stop: asyncio.Event, *, first_sweep: bool = True) -> None:
        """Supervise until ``stop`` is set, then release all leases. Agents keep running."""
        await self.open()
        self.registry.grace.begin(settings.KANDEV_BOOT_GRACE)
        try:
            if first_sweep:
                await self.sweep(SweepScope("boot"))
            log.info("supervising: %d sessions attached", len(self.registry.streams))
            for job in self.jobs:
                if job.is_enabled():
                    self._spawn(job.name, job.run_step)
            await stop.wait()
        finally:
            await self.close()

    async def close(self) -> None:
        """Cancel all jobs and release the leases, so that the next supervisor need not wait for them to expire."""
        crash_points.reached("shutdown.begun")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for job in self.jobs:
            await _try_to(f"stop the job {job.name}", job.stop())
        await _try_to("stop carrying out intents", self.dispatcher.close())
        for job in self.jobs:
            await _try_to(f"finish the job {job.name}", job.finish())
        await _try_to("release the leases", self.registry.release_all())
        crash_points.reached("shutdown.released")
        await _try_to("store the metrics", self._at_shutdown(METRICS_BUFFER.flush))
        # Last: as long as our row is there, our leases count as those of a living supervisor.
        await _try_to("unregister", self._at_shutdown(leases.unregister_supervisor))
        crash_points.reached("shutdown.unregistered")
        await self.registry.close()

    async def _at_shutdown(self, function: Callable[[str], object]) -> None:
        await self.registry.database.run_at_shutdown(function, self.registry.boot_id)

    def _spawn(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(_repeat_forever(name, step, self.registry.outage), name=name))

    async def _renew_leases(self) -> None:
        """Renew at a third of a lease's lifetime, so that two renewals may fail before it expires."""
        await asyncio.sleep(settings.KANDEV_LEASE_TTL / 3)
        try:
            await self.registry.database(leases.record_heartbeat, self.registry.boot_id)
        finally:
            self._beat_file.touch()  # also after an error: then it is the database that does not work
        renewed = await self.registry.database(leases.renew_leases, self.registry.boot_id)
        for job in self.jobs:
            await job.renew_leases()
        for stream in list(self.registry.streams.values()):
            # The lease expired before we renewed it, and another supervisor took it: this stream's writes would fail.
            if uuid.UUID(stream.facts.id) not in renewed:
                log.warning("session %s: another supervisor has its lease now", stream.session_id)
                await self.registry.close_stream(stream.session_id)

    def handle_news(self, stream: ExecutionStream, news: Sequence[News]) -> None:
        """Pass on what a stream has committed, and wake the queues of its session."""
        for job in self.jobs:
            job.handle_news(stream, news)
        # Without an agent they are woken after the recheck: before, they would only delay it.
        if News.AGENT_GONE not in news:
            self.wake_session(stream.session_id)

    def handle_lost_stream(self, stream: ExecutionStream) -> None:
        """Recheck the session of a stream that ended unexpectedly."""
        self.rechecks.add_lost(stream.session_id)

    def wake_session(self, session_id: uuid.UUID) -> None:
        """Run the session's open intents and its next prompt."""
        self.dispatcher.wake(session_id)

    def start_session(self, session_id: uuid.UUID, intent_id: uuid.UUID | None) -> None:
        """Carry out a start that a sweep has ordered."""
        self.dispatcher.wake(session_id, overtakes=False, start=intent_id)


async def _try_to(purpose: str, step: Awaitable[None]) -> None:
    """Take one step of a shutdown; a failure is logged, and the steps that follow are taken all the same."""
    try:
        await step
    except Exception:
        log.exception("could not %s at shutdown", purpose)


async def _repeat_forever(name: str, step: Callable[[], Awaitable[None]], outage: DatabaseOutage) -> None:
    """Repeat a step. During a database outage all jobs wait together; any other failure is logged once and retried."""
    actor_context.begin_context(cause=name)
    backoff, logged = Backoff(), ""
    while True:
        try:
            await step()
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
