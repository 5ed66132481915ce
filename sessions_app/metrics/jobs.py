"""The job of metrics: write what this supervisor has measured."""

from __future__ import annotations

import asyncio

from sessions_app.metrics.counters import FLUSH_EVERY, METRICS_BUFFER
from sessions_app.supervisor.job import Job


class MetricsJob(Job):
    """Writes the measurements of this process into the database."""

    name = "metrics"

    async def run_step(self) -> None:
        """Wait, then write what has been counted; the loop writes the rest when it closes."""
        await asyncio.sleep(FLUSH_EVERY)
        if METRICS_BUFFER.has_counts:
            await self.registry.database(METRICS_BUFFER.flush, self.registry.boot_id)
