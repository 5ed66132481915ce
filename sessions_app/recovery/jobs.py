"""Jobs of recovery: sweeps at intervals and on request, rechecks of single sessions, exit events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from django.conf import settings

from executors_app.wire.executions import Observed
from sessions_app.recovery import sweep_reports
from sessions_app.recovery.recheck_queue import ExitEventListener
from sessions_app.recovery.sweep.sweep_pass import SweepScope, run_sweep
from sessions_app.stream.stream_news import News
from sessions_app.supervisor.execution_stream import ExecutionStream
from sessions_app.supervisor.job import Job, Supervisor


class ReconcileJob(Job):
    """Sweeps all sessions at intervals."""

    name = "reconcile"

    async def run_step(self) -> None:
        """Wait, then sweep."""
        await asyncio.sleep(settings.KANDEV_RECONCILE_INTERVAL)
        await self.supervisor.sweep(SweepScope("reconcile"))
        self.supervisor.dispatcher.announce_work()


class RecheckJob(Job):
    """Sweeps single sessions at once, as soon as something may have happened to them."""

    name = "recheck"

    def handle_news(self, stream: ExecutionStream, news: Sequence[News]) -> None:
        """Request a recheck of a session whose agent is gone."""
        if News.TURN_COMPLETED in news:
            self.supervisor.rechecks.reset_backoff(stream.session_id)  # its agent works: its next end is a new series
        if News.AGENT_GONE in news:
            self.supervisor.rechecks.add_lost(stream.session_id)

    async def run_step(self) -> None:
        """Wait for sessions that need a recheck, and sweep them."""
        rechecks = self.supervisor.rechecks
        sessions = await rechecks.take()
        try:
            with self.registry.changes.urgent():
                result = await self.supervisor.sweep(SweepScope("reconcile", sessions=sessions))
        except Exception:
            rechecks.add(sessions)  # taken out already: a failed sweep must not lose them
            raise
        unknown = {one.row.stored.session_id for one in result.decided if one.seen.observed is Observed.UNKNOWN}
        rechecks.record_result(sessions, unknown)
        self.supervisor.dispatcher.announce_work()


class RequestedSweepsJob(Job):
    """Carries out the sweeps that users and deploys request."""

    name = "requested sweeps"

    async def run_step(self) -> None:
        """Run the oldest requested sweep; without one, wait until the database changes."""
        request = await self.registry.database(sweep_reports.next_request)
        if request is None:
            await self.supervisor.database_changed.wait()
            return
        scope = sweep_reports.request_scope(request)
        async with sweep_reports.progress_writer(self.registry, request) as progress:
            result = await run_sweep(self.registry, scope, self.supervisor.unknown, progress)
        await self.registry.database(sweep_reports.settle_request, request, result, self.registry.boot_id)
        self.supervisor.dispatcher.announce_work()


class ExitEventsJob(Job):
    """Listens to the exit events of container engines and sandboxes, and requests rechecks."""

    name = "exit events"

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        self._listener = ExitEventListener(self.registry, supervisor.rechecks.add_one)

    async def run_step(self) -> None:
        """Listen to the sources of the sessions that are attached now."""
        await self._listener.refresh_listeners()

    async def stop(self) -> None:
        """Stop listening."""
        await self._listener.close()
