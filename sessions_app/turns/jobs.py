"""The job of stalls: report silent turns and ignored cancels, and end agents' own turns that are silent."""

from __future__ import annotations

import asyncio

from django.conf import settings

from sessions_app.supervisor.job import Job
from sessions_app.turns.agent_turns import end_quiet_turns, sessions_past_limit
from sessions_app.turns.silence import end_work_outside_turns, report_ignored_cancels, report_stalled_turns

STALLS_EVERY = 15.0
"""Maximum seconds between two checks for silent turns and ignored cancels."""


class StallsJob(Job):
    """Reports silent turns and turns that outlive their cancel; ends turns that an agent began and that are silent."""

    name = "stalls"

    async def run_step(self) -> None:
        """Wait, then check the sessions that are attached."""
        await asyncio.sleep(_check_interval())
        leases = {key: stream.lease for key, stream in self.registry.streams.items() if not stream.ended}
        await self.registry.database(report_stalled_turns, leases)
        await self.registry.database(report_ignored_cancels, leases)
        await self.registry.database(end_work_outside_turns, leases)
        await self._check_agent_turns()

    async def _check_agent_turns(self) -> None:
        """End the agents' own turns that are silent, and deliver what has waited for one for long enough."""
        streams = {key: stream for key, stream in self.registry.streams.items() if not stream.ended}
        # A journal that is only being read again may still have output of the last seconds.
        read = {key: stream.lease for key, stream in streams.items() if stream.age >= settings.KANDEV_AGENT_TURN_QUIET}
        await self.registry.database(end_quiet_turns, read)
        for session_id in await self.registry.database(sessions_past_limit, list(streams)):
            self.registry.listener.wake_session(session_id)


def _check_interval() -> float:
    """Return a fraction of the shortest silence that matters, between 0.2 s and ``STALLS_EVERY``."""
    intervals = [STALLS_EVERY, settings.KANDEV_AGENT_TURN_QUIET / 3]
    if settings.KANDEV_STALL_NOTICE:
        intervals.append(settings.KANDEV_STALL_NOTICE / 10)
    return max(min(intervals), 0.2)
