"""The job of workflows: drive the runs whose leases this supervisor can acquire."""

from __future__ import annotations

from collections.abc import Sequence

from sessions_app.stream.stream_news import News
from sessions_app.supervisor.execution_stream import ExecutionStream
from sessions_app.supervisor.job import Job, Supervisor
from sessions_app.workflows.driver.driver import WorkflowDriver


class WorkflowsJob(Job):
    """Drives workflow runs."""

    name = "workflows"

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        self._driver = WorkflowDriver(self.registry)

    def handle_news(self, stream: ExecutionStream, news: Sequence[News]) -> None:
        """Continue the run that waits for a turn."""
        if News.TURN_ENDED in news:
            self._driver.wake()

    async def run_step(self) -> None:
        """Do one pass over the active runs, then wait until the next is due."""
        await self._driver.run_once()

    async def renew_leases(self) -> None:
        """Renew the leases of all runs."""
        await self._driver.renew()

    async def stop(self) -> None:
        """Stop driving, and release the leases of runs."""
        await self._driver.close()
