"""The job of stalls: report silent turns and ignored cancels, and end agents' own turns that are silent."""

from __future__ import annotations

import asyncio
from typing import Final

from django.conf import settings

from executors_app.wire.errors import ExecutorError
from sessions_app.supervisor.execution_stream import ExecutionStream
from sessions_app.supervisor.job import Job
from sessions_app.turns.agent_turns import end_quiet_turns, sessions_past_limit, sessions_with_quiet_turns
from sessions_app.turns.silence import end_work_outside_turns, report_ignored_cancels, report_stalled_turns

STALLS_EVERY = 15.0
"""Maximum seconds between two checks for silent turns and ignored cancels."""
_READ_WITHIN: Final = 2.0
"""Seconds for agentctl's answer, and again for the journal lines that it names: later, silence is not proven."""


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
        read = [key for key, stream in streams.items() if stream.age >= settings.KANDEV_AGENT_TURN_QUIET]
        quiet = await self.registry.database(sessions_with_quiet_turns, read)
        proven = await asyncio.gather(*(_has_read_all(streams[key]) for key in quiet))
        leases = {key: streams[key].lease for key, is_proven in zip(quiet, proven, strict=True) if is_proven}
        await self.registry.database(end_quiet_turns, leases)
        for session_id in await self.registry.database(sessions_past_limit, list(streams)):
            self.registry.listener.wake_session(session_id)


async def _has_read_all(stream: ExecutionStream) -> bool:
    """Whether the log has every line of the journal: an agent whose host cannot be reached is not silent."""
    try:
        journal = (await stream.client.status(timeout=_READ_WITHIN))["journal"]
    except ExecutorError:
        return False
    return await stream.wait_until_logged(journal["epoch"], journal["last_seq"], _READ_WITHIN)


def _check_interval() -> float:
    """Return a fraction of the shortest silence that matters, between 0.2 s and ``STALLS_EVERY``."""
    intervals = [STALLS_EVERY, settings.KANDEV_AGENT_TURN_QUIET / 3]
    if settings.KANDEV_STALL_NOTICE:
        intervals.append(settings.KANDEV_STALL_NOTICE / 10)
    return max(min(intervals), 0.2)
