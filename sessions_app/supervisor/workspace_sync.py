"""Lets the work of sessions arrive at the control plane after each snapshot, so that it outlives their sandboxes."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from executors_app.domain import ExecutionFacts
from executors_app.errors import ExecutorError
from executors_app.plugins import runtime
from executors_app.runtimes import SupportsPush
from sessions_app.supervisor.pace import Pace

log = logging.getLogger(__name__)
AT_ONCE: Final = 4
TRIES: Final = 8
"""Of one snapshot; the next one brings it all, too."""


class WorkspaceSync:
    """At most one push at a time for each session; what becomes due meanwhile follows."""

    def __init__(self) -> None:
        self._due: dict[str, ExecutionFacts] = {}
        self._pushes: dict[str, asyncio.Task[None]] = {}
        self._gate = asyncio.Semaphore(AT_ONCE)

    def request(self, facts: ExecutionFacts) -> None:
        """Push after a snapshot or a restart; nothing to do where the work is in the team's repository anyway."""
        if not isinstance(runtime(facts.runtime), SupportsPush):
            return
        self._due[facts.session_id] = facts
        if facts.session_id not in self._pushes:
            push = asyncio.create_task(self._push(facts.session_id), name=f"workspace sync {facts.session_id}")
            self._pushes[facts.session_id] = push

    async def close(self) -> None:
        """Leave the rest to the next supervisor, which compares what has arrived with the newest snapshot."""
        pushes = list(self._pushes.values())
        for push in pushes:
            push.cancel()
        await asyncio.gather(*pushes, return_exceptions=True)

    async def _push(self, session_id: str) -> None:
        pace, tries = Pace(), 0
        try:
            while (facts := self._due.pop(session_id, None)) is not None and tries < TRIES:
                if await self._arrived(facts):
                    pace, tries = Pace(), 0
                    continue
                tries += 1
                self._due.setdefault(session_id, facts)
                await asyncio.sleep(pace.failed())
        finally:
            self._due.pop(session_id, None)
            del self._pushes[session_id]

    async def _arrived(self, facts: ExecutionFacts) -> bool:
        place = runtime(facts.runtime)
        assert isinstance(place, SupportsPush)  # noqa: S101  (asked when it became due)
        try:
            async with self._gate:
                await place.push_work(facts)
        except ExecutorError as error:
            log.warning("session %s: its work has not arrived: %s", facts.session_id, error.message)
            return error.permanent
        except Exception:
            log.exception("session %s: its work has not arrived", facts.session_id)
            return False
        return True
