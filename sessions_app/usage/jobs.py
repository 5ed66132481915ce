"""The job of budgets: let sessions go on whose budget allows it again."""

from __future__ import annotations

import asyncio
from typing import Final

from sessions_app.supervisor.change_counter import seconds_until
from sessions_app.supervisor.job import Job
from sessions_app.usage import budgets

CHECK_EVERY: Final = 2.0
"""Minimum seconds between two checks; while no budget holds anything back, it waits for a change."""
PAUSE: Final = 0.1
"""Seconds between the passes of one check, in which other work gets the database thread."""


class BudgetsJob(Job):
    """Ends holds of budgets that were raised, whose day is over, or for which no prompt waits any more."""

    name = "budgets"

    async def run_step(self) -> None:
        """End what need not hold any more, and wait until that may have changed."""
        changes = self.registry.changes.count
        after = None
        while True:
            done = await self.registry.database(budgets.update_holds, after)
            if done.updated:
                self.supervisor.dispatcher.announce_work()
            after = done.after
            if after is None:
                break
            await asyncio.sleep(PAUSE)
        await asyncio.sleep(CHECK_EVERY)
        await self.registry.changes.rest(changes, seconds_until(await self.registry.database(budgets.next_check)))
