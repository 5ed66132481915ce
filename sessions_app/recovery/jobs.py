"""Jobs of recovery: sweeps at intervals and on request, rechecks of single sessions, exit events."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from executors_app.models import Executor, ExecutorRunning
from executors_app.plugins import runtimes
from executors_app.runtimes import SupportsSettling, SupportsUnwantedLaunches
from executors_app.wire.executions import Observed
from sessions_app.kernel.rules.states import ENDED_STATES, TERMINAL_STATES, DesiredState
from sessions_app.models import Intent, IntentKind, SweepRequest, TaskSession
from sessions_app.recovery.recheck_queue import ExitEventListener
from sessions_app.recovery.sweep.candidates import CLAIMING_STATUSES
from sessions_app.recovery.sweep.sweep_pass import (
    ProgressCallback,
    SweepRun,
    SweepScope,
    build_report,
    run_sweep,
    store_sweep,
)
from sessions_app.stream.stream_news import News
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.execution_stream import ExecutionStream
from sessions_app.supervisor.job import Job, Supervisor

PROGRESS_EVERY = 0.5
"""Seconds between two writes of a sweep's progress."""


class ReconcileJob(Job):
    """Sweeps all sessions at intervals."""

    name = "reconcile"

    async def run_step(self) -> None:
        """Wait, then sweep."""
        await asyncio.sleep(settings.KANDEV_RECONCILE_INTERVAL)
        await self.supervisor.sweep(SweepScope("reconcile"))
        self.supervisor.dispatcher.announce_work()


class SettleEndedJob(Job):
    """Records the ends of what others have ended, where no session is attached whose stream would tell.

    Apart from the sweeps, so that a cluster that does not answer delays none of them.
    """

    name = "settle ended"

    async def run_step(self) -> None:
        """Wait as long as between two sweeps, then ask every place that needs it."""
        await asyncio.sleep(settings.KANDEV_RECONCILE_INTERVAL)
        for name, place in runtimes().items():
            if isinstance(place, SupportsSettling):
                await place.settle_ended(await self.registry.database(_configs_of, name))
            if isinstance(place, SupportsUnwantedLaunches):
                await place.remove_unwanted(await self.registry.database(_configs_of, name), self._find_unwanted)

    async def _find_unwanted(self, sessions: Collection[str]) -> Mapping[str, bool]:
        return await self.registry.database(find_unwanted, sessions)


def find_unwanted(sessions: Collection[str]) -> dict[str, bool]:
    """Return which of these sessions nobody starts any more, and whether they are closed or deleted; two queries.

    Only ids count: what else a place names its objects by is nobody's.
    """
    ids = [one for one in sessions if _is_id(one)]
    rows = TaskSession.objects.filter(id__in=ids)
    starting = Exists(Intent.objects.filter(session=OuterRef("id"), kind=IntentKind.START, done_at=None))
    up = Exists(ExecutorRunning.objects.filter(session=OuterRef("id"), status__in=CLAIMING_STATUSES))
    over = Q(desired_state=DesiredState.STOPPED) | Q(state__in=ENDED_STATES)
    there = {str(one) for one in rows.values_list("id", flat=True)}
    resting = rows.filter(over & ~starting & ~up).values_list("id", "state")
    unwanted = {str(one): state in TERMINAL_STATES for one, state in resting}
    return unwanted | {one: True for one in ids if one not in there}


def _is_id(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _configs_of(runtime: str) -> list[dict[str, Any]]:
    return list(Executor.objects.filter(runtime=runtime).values_list("config", flat=True))


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
        request = await self.registry.database(_next_request)
        if request is None:
            await self.supervisor.database_changed.wait()
            return
        scope = _scope_of(request)
        async with _progress_writer(self.registry, request) as progress:
            result = await run_sweep(self.registry, scope, self.supervisor.unknown, progress)
        await self.registry.database(_settle_request, request, result, self.registry.boot_id)
        self.supervisor.dispatcher.announce_work()


def _next_request() -> SweepRequest | None:
    """Return the oldest request that is not done, or None."""
    return SweepRequest.objects.filter(done_at=None).order_by("created_at", "id").first()


def _scope_of(request: SweepRequest) -> SweepScope:
    """Return the scope of a requested sweep; like a periodic one, it does not act on a first *unknown*."""
    sessions = [uuid.UUID(session_id) for session_id in request.sessions]
    return SweepScope("reconcile", sessions=sessions, dry_run=request.dry_run)


@asynccontextmanager
async def _progress_writer(registry: ExecutionRegistry, request: SweepRequest) -> AsyncIterator[ProgressCallback]:
    """Yield a progress callback, and store its latest values in the request while the block runs."""
    latest: tuple[int, int] | None = None

    def report(done: int, total: int) -> None:
        nonlocal latest
        latest = (done, total)

    async def store_latest() -> None:
        stored = None
        while True:
            if latest is not None and latest != stored:
                stored = latest
                await registry.database(_save_progress, request.id, *stored)
            await asyncio.sleep(PROGRESS_EVERY)

    task = asyncio.create_task(store_latest())
    try:
        yield report
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _save_progress(request_id: uuid.UUID, done: int, total: int) -> None:
    SweepRequest.objects.filter(id=request_id, done_at=None).update(rows_done=done, rows_in_all=total)


def _settle_request(request: SweepRequest, result: SweepRun, boot_id: str) -> None:
    """Store the sweep, unless it was a dry run, and mark its request as done with the report.

    If two supervisors ran the same request, the first result stays.
    """
    document = build_report(result, boot_id)
    with transaction.atomic():
        sweep_id = None
        if not request.dry_run:
            store_sweep(document, result, is_requested=True)
            sweep_id = result.sweep_id
        SweepRequest.objects.filter(id=request.id, done_at=None).update(
            done_at=timezone.now(),
            rows_done=document["examined"],
            rows_in_all=document["examined"],
            sweep_id=sweep_id,
            report=document,
        )


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
