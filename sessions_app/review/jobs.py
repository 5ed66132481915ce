"""The job of branch counts: how many lines each branch has changed, measured once its turn has ended."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from django.utils import timezone

from executors_app.wire.errors import ExecutorError
from sessions_app.models import TaskSession
from sessions_app.review.services import find_base, note_counts, sessions_to_count
from sessions_app.stream.stream_news import News
from sessions_app.supervisor.execution_stream import ExecutionStream
from sessions_app.supervisor.job import Job, Supervisor

CHECK_EVERY: Final = 30.0
"""Maximum seconds between two checks; the end of a turn begins one at once."""
MAX_ASKED: Final = 4
"""Agentctls that are asked at once."""
ANSWER_WITHIN: Final = 30.0
"""Seconds for an answer; without one, the count stays as it is until the next turn or until somebody looks."""


class BranchCountsJob(Job):
    """Asks the workspaces of attached sessions once after each turn, so that the board shows what was changed."""

    name = "branch counts"

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        self._turn_ended = asyncio.Event()
        self._asked: dict[uuid.UUID, datetime] = {}
        """The end of the turn after which each session was asked, whatever came of it."""
        self._slots = asyncio.Semaphore(MAX_ASKED)

    def handle_news(self, stream: ExecutionStream, news: Sequence[News]) -> None:
        """Count soon after the end of a turn."""
        if News.TURN_ENDED in news:
            self._turn_ended.set()

    async def run_step(self) -> None:
        """Count what has changed since it was counted, then wait for the end of a turn."""
        self._turn_ended.clear()
        streams = {key: stream for key, stream in self.registry.streams.items() if not stream.ended}
        self._asked = {key: ended_at for key, ended_at in self._asked.items() if key in streams}
        due = await self.registry.database(sessions_to_count, list(streams))
        new = [(session, ended_at) for session, ended_at in due if self._asked.get(session.id) != ended_at]
        self._asked.update({session.id: ended_at for session, ended_at in new})
        await asyncio.gather(*(self._count(session, streams[session.id]) for session, _ in new))
        try:
            await asyncio.wait_for(self._turn_ended.wait(), CHECK_EVERY)
        except TimeoutError:
            return

    async def _count(self, session: TaskSession, stream: ExecutionStream) -> None:
        """Ask one workspace; what it does not answer stays unknown."""
        async with self._slots:
            asked_at = timezone.now()
            try:
                async with asyncio.timeout(ANSWER_WITHIN):
                    # Reads files of the repository, which may be on a slow disk.
                    base = await asyncio.to_thread(find_base, session)
                    found = await stream.client.branch_changes(base)
            except (ExecutorError, TimeoutError):
                return
            await self.registry.database(note_counts, session, found, asked_at)
