"""The job of stalls: report silent turns, and turns that outlive their cancel."""

from __future__ import annotations

import asyncio

from django.conf import settings

from sessions_app.supervisor.job import Job
from sessions_app.turns.silence import end_work_outside_turns, report_ignored_cancels, report_stalled_turns

STALLS_EVERY = 15.0
"""Maximum seconds between two checks for silent turns and ignored cancels."""


class StallsJob(Job):
    """Reports silent turns, and turns that outlive their cancel."""

    name = "stalls"

    async def run_step(self) -> None:
        """Wait, then check the sessions that are attached."""
        await asyncio.sleep(_check_interval())
        leases = {key: stream.lease for key, stream in self.registry.streams.items() if not stream.ended}
        await self.registry.database(report_stalled_turns, leases)
        await self.registry.database(report_ignored_cancels, leases)
        await self.registry.database(end_work_outside_turns, leases)


def _check_interval() -> float:
    """Return a tenth of the time after which a turn counts as silent, between 0.2 s and ``STALLS_EVERY``."""
    if not settings.KANDEV_STALL_NOTICE:
        return STALLS_EVERY  # there are still ignored cancels to report, which are not urgent
    return min(max(settings.KANDEV_STALL_NOTICE / 10, 0.2), STALLS_EVERY)
