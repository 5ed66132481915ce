"""The job of transfers: push snapshots of workspaces to the control plane."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from django.conf import settings

from sessions_app.stream.stream_news import News
from sessions_app.supervisor.execution_stream import ExecutionStream
from sessions_app.supervisor.job import Job, Supervisor
from sessions_app.workspace.workspace_sync import WorkspaceSync


class TransfersJob(Job):
    """Pushes each new snapshot, and those whose transfer was cut short by a kill or by an unreachable engine."""

    name = "transfers"

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        self._sync = WorkspaceSync(self.registry.database, self.registry.boot_id)

    def handle_news(self, stream: ExecutionStream, news: Sequence[News]) -> None:
        """Push a new snapshot at once."""
        if News.SNAPSHOT_TAKEN in news:
            self._sync.request(stream.facts)

    async def run_step(self) -> None:
        """Push what has not arrived, then wait."""
        await self._sync.catch_up()
        await asyncio.sleep(settings.KANDEV_RECONCILE_INTERVAL)

    async def stop(self) -> None:
        """Leave the rest to the next supervisor."""
        await self._sync.close()
