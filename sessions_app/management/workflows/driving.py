"""Following a run to its end; driven by whoever supervises this database, or else here, until then."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Final

from asgiref.sync import sync_to_async

from sessions_app.models import Intent, NodeRun, WorkflowRun
from sessions_app.services.workflows import cancel_run
from sessions_app.supervisor.lock import SupervisorLock
from sessions_app.supervisor.loop import Supervisor

LOOK_EVERY: Final = 0.2
"""Seconds between two looks at the run."""
STOPS_WITHIN: Final = 30.0
Report = Callable[[WorkflowRun, list[NodeRun]], None]


async def follow(run: WorkflowRun, report: Report) -> WorkflowRun:
    """Report every change until the run is over; the run then. Ctrl-C asks for its end, and waits for that.

    While a server has this database it drives the run; where there is none, or it ends, a supervisor here does,
    which also ends the run's sessions before it goes.
    """
    stop, supervisor = asyncio.Event(), None
    with SupervisorLock("run") as lock, _cancelling(run):
        try:
            while True:
                if supervisor is None and lock.take():
                    supervisor = asyncio.create_task(Supervisor().run(stop, first_sweep=False))
                if supervisor is not None and supervisor.done():
                    supervisor.result()
                seen, nodes = await sync_to_async(_look)(run.id)
                report(seen, nodes)
                if seen.is_over:
                    if supervisor is not None:
                        await _wait_for_stops(seen)
                    return seen
                await asyncio.sleep(LOOK_EVERY)
        finally:
            stop.set()
            if supervisor is not None:
                await supervisor


@contextlib.contextmanager
def _cancelling(run: WorkflowRun) -> Iterator[None]:
    """Signals ask for the end of the run."""
    loop = asyncio.get_running_loop()
    asked: set[asyncio.Future[WorkflowRun]] = set()

    def cancel() -> None:
        asked.add(asyncio.ensure_future(sync_to_async(cancel_run)(run.started_by, run)))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, cancel)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _wait_for_stops(run: WorkflowRun) -> None:
    """Until its sessions are stopped; what takes too long is the next supervisor's."""
    deadline = time.monotonic() + STOPS_WITHIN
    while time.monotonic() < deadline:
        if not await Intent.objects.filter(session__task_id=run.task_id, done_at=None).aexists():
            return
        await asyncio.sleep(LOOK_EVERY)


def _look(run_id: uuid.UUID) -> tuple[WorkflowRun, list[NodeRun]]:
    row = WorkflowRun.objects.get(id=run_id)
    return row, list(row.node_runs.defer("inputs", "outputs", "request").order_by("position"))
