"""Jobs of starts: start the next sessions of the queue, and put idle ones to sleep."""

from __future__ import annotations

import asyncio
import uuid
from datetime import datetime

from django.conf import settings
from django.utils import timezone

from sessions_app.recovery.sweep.sweep_pass import DecidedRow, SweepRun, SweepScope
from sessions_app.starts import admission, idle_sleep
from sessions_app.supervisor.change_counter import seconds_until
from sessions_app.supervisor.job import Job, Supervisor

ADMIT_EVERY = 0.5
"""Minimum seconds between two checks of the start queue; while it is empty, it waits for a change."""


class StartQueueJob(Job):
    """Starts the next sessions of the start queue, and rechecks those whose next restart is due."""

    name = "start queue"

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        self._due_restarts: frozenset[tuple[uuid.UUID, datetime]] = frozenset()
        """Restarts that were due at the last check, with the time at which they became due."""

    async def run_step(self) -> None:
        """Start whose turn has come, and wait until another start may be due."""
        changes = self.registry.changes.count
        await start_queued_sessions(self.supervisor)
        checked_at = timezone.now()
        due = await self.registry.database(admission.load_due_restarts, checked_at)
        # Once for each due time: a session that cannot start yet would otherwise be rechecked twice a second.
        newly_due, self._due_restarts = due - self._due_restarts, due
        for session_id, _ in newly_due:
            self.supervisor.rechecks.add_one(session_id)
        await asyncio.sleep(ADMIT_EVERY)
        # What falls due during this pause was not in the list above, so it must end the rest at once.
        next_due = await self.registry.database(admission.next_start_due, checked_at)
        await self.registry.changes.rest(changes, seconds_until(next_due))


async def start_queued_sessions(supervisor: Supervisor) -> SweepRun | None:
    """Start the sessions whose turn has come; None if there are none."""
    registry = supervisor.registry
    due = await registry.database(admission.load_next_starts, registry.boot_id, registry.start_slots)
    if not due:
        return None
    result = await supervisor.sweep(SweepScope("reconcile", sessions=due, admitted=True))
    still_waiting = {item.row.stored.session_id for item in result.decided if _is_still_waiting(item, result)}
    await registry.database(admission.leave_start_queue, set(due) - still_waiting)
    supervisor.dispatcher.announce_work()
    return result


def _is_still_waiting(item: DecidedRow, result: SweepRun) -> bool:
    """Whether the session keeps its place in the start queue, or another supervisor has it."""
    outcome = result.outcomes.get(item.facts.session_id)
    return item.decision.rule == "waits_for_turn" or bool(outcome and outcome.skipped)


class IdleSleepJob(Job):
    """Puts sessions to sleep whose agents have been idle for ``KANDEV_IDLE_SLEEP``."""

    name = "idle sleep"

    def is_enabled(self) -> bool:
        """Whether idle sessions are put to sleep at all."""
        return bool(settings.KANDEV_IDLE_SLEEP)

    async def run_step(self) -> None:
        """Wait, then put the idle sessions to sleep."""
        await asyncio.sleep(idle_sleep.check_interval())
        if await idle_sleep.sleep_idle_sessions(self.registry):
            self.supervisor.dispatcher.announce_work()
