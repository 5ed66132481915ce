"""Lets the work of sessions in far workspaces come home after each snapshot, so that it outlives the far end."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from executors_app.domain import ExecutionFacts
from executors_app.errors import ExecutorError
from executors_app.plugins import runtime
from executors_app.runtimes import BringsHome
from sessions_app.supervisor.pace import Pace

log = logging.getLogger(__name__)
AT_ONCE: Final = 4
TRIES: Final = 8
"""Of one snapshot; the next one brings it all, too."""


class Homecoming:
    """At most one on its way for each session; what becomes due meanwhile follows."""

    def __init__(self) -> None:
        self._due: dict[str, ExecutionFacts] = {}
        self._ways: dict[str, asyncio.Task[None]] = {}
        self._gate = asyncio.Semaphore(AT_ONCE)

    def due(self, facts: ExecutionFacts) -> None:
        """A snapshot was taken; nothing to do where the workspace is at home."""
        if not isinstance(runtime(facts.runtime), BringsHome):
            return
        self._due[facts.session_id] = facts
        if facts.session_id not in self._ways:
            way = asyncio.create_task(self._bring(facts.session_id), name=f"homecoming {facts.session_id}")
            self._ways[facts.session_id] = way

    async def close(self) -> None:
        """Leave it to the next snapshot."""
        ways = list(self._ways.values())
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)

    async def _bring(self, session_id: str) -> None:
        pace, tries = Pace(), 0
        try:
            while (facts := self._due.pop(session_id, None)) is not None and tries < TRIES:
                if await self._came(facts):
                    pace, tries = Pace(), 0
                    continue
                tries += 1
                self._due.setdefault(session_id, facts)
                await asyncio.sleep(pace.failed())
        finally:
            self._due.pop(session_id, None)
            del self._ways[session_id]

    async def _came(self, facts: ExecutionFacts) -> bool:
        place = runtime(facts.runtime)
        assert isinstance(place, BringsHome)  # noqa: S101  (asked when it became due)
        try:
            async with self._gate:
                await place.bring_home(facts)
        except ExecutorError as error:
            log.warning("session %s: its work could not be brought home: %s", facts.session_id, error.message)
            return error.permanent
        except Exception:
            log.exception("session %s: its work could not be brought home", facts.session_id)
            return False
        return True
