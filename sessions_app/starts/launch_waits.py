"""Launch an execution, and write what the launch waits for, so that people see it before the launch has ended."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from django.db import Error

from executors_app.runtimes import Runtime, SupportsLaunchReports
from executors_app.wire.executions import ExecutorStatus, Launched, LaunchWait
from sessions_app.kernel.rules.states import DesiredState
from sessions_app.models import LeaseLost, session_transaction
from sessions_app.starts.claims import StartClaim
from sessions_app.supervisor.execution_registry import ExecutionRegistry

log = logging.getLogger(__name__)

_PATIENCE: Final = 3.0
"""Seconds that an ordinary step may take before it is worth a word."""
_INTERVAL: Final = 5.0
"""Seconds between two writes: a scheduler may count its nodes anew all the time."""
_MOST_WRITES: Final = 20
"""Writes for one launch, each of which is a line in the session's log."""


async def launch_reporting(registry: ExecutionRegistry, plan: StartClaim, place: Runtime) -> Launched:
    """Launch an execution; write what it waits for on each change. Raises what the launch raises."""
    if not isinstance(place, SupportsLaunchReports):
        return await place.launch(plan.spec)
    waits = _LatestWait()
    writer = asyncio.create_task(_write_waits(registry, plan, waits), name="waits of a launch")
    try:
        return await place.launch_reporting(plan.spec, waits.report)
    finally:
        # A write that is under way ends before the outcome of the launch is written, in the same thread.
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)


class _LatestWait:
    """What a launch waits for now, and since when."""

    def __init__(self) -> None:
        self._wait: LaunchWait | None = None
        self._since = 0.0
        self._changed = asyncio.Event()

    def report(self, wait: LaunchWait) -> None:
        """Remember what the launch waits for."""
        if wait != self._wait:
            self._wait, self._since = wait, time.monotonic()
            self._changed.set()

    async def next_wait(self) -> LaunchWait:
        """Return the next wait that differs from the last one, once it is worth a word."""
        await self._changed.wait()
        while True:
            assert self._wait is not None  # noqa: S101  (it has changed)
            self._changed.clear()
            if self._wait.is_obstacle:
                return self._wait
            remaining = self._since + _PATIENCE - time.monotonic()
            if remaining <= 0:
                return self._wait
            try:
                await asyncio.wait_for(self._changed.wait(), remaining)
            except TimeoutError:
                return self._wait


async def _write_waits(registry: ExecutionRegistry, plan: StartClaim, waits: _LatestWait) -> None:
    """Write each wait. What cannot be written now is no reason to end a launch: its outcome says the same."""
    for _ in range(_MOST_WRITES):
        wait = await waits.next_wait()
        try:
            await registry.database(write_launch_wait, plan, wait)
        except (LeaseLost, Error) as error:
            log.info("session %s: what its start waits for could not be written: %s", plan.session_id, error)
        await asyncio.sleep(_INTERVAL)


def write_launch_wait(plan: StartClaim, wait: LaunchWait) -> None:
    """Write what a launch waits for, unless it is over or unwanted. Raises LeaseLost.

    Every later move of the execution removes it.
    """
    with session_transaction(plan.session_id, plan.lease) as transaction:
        execution = transaction.execution
        if execution is None or execution.status != ExecutorStatus.STARTING:
            return
        if transaction.session.desired_state == DesiredState.RUNNING:
            transaction.move_executor("launch", error_code=wait.code, error_message=wait.text)
