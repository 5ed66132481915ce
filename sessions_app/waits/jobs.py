"""The job of deadlines: expire waits, report overdue prompts, and notice turns whose retry is due."""

from __future__ import annotations

import asyncio
import uuid

from sessions_app.permissions.key_renewal import renew_permission_keys
from sessions_app.prompts import overdue
from sessions_app.supervisor.change_counter import seconds_until
from sessions_app.supervisor.job import Job, Supervisor
from sessions_app.turns.retries import load_due_retries
from sessions_app.waits import expiry

DEADLINES_EVERY = 1.0
"""Minimum seconds between two checks for waits that have expired; without any, it waits for a change."""


class DeadlinesJob(Job):
    """Expires waits and reports overdue prompts; keys that became unusable are renewed first."""

    name = "deadlines"

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        self._due_retries: frozenset[uuid.UUID] = frozenset()
        """Sessions whose retry was due at the last check."""

    async def run_step(self) -> None:
        """Renew the unusable keys once, then check deadlines until it fails or is cancelled."""
        _, last_checked = await self.registry.database(renew_permission_keys)
        while last_checked:
            _, last_checked = await self.registry.database(renew_permission_keys, last_checked)
        while True:
            await self._check_deadlines()

    async def _check_deadlines(self) -> None:
        changes = self.registry.changes.count
        if await self.registry.database(expiry.expire_waits):
            self.supervisor.dispatcher.announce_work()
        await self.registry.database(overdue.report_overdue_prompts)
        due_before, self._due_retries = self._due_retries, await self.registry.database(load_due_retries)
        if self._due_retries - due_before:
            self.supervisor.dispatcher.announce_work()
        await asyncio.sleep(DEADLINES_EVERY)
        next_deadline = await self.registry.database(expiry.next_deadline)
        await self.registry.changes.rest(changes, seconds_until(next_deadline))
