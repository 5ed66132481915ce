"""Listens to those who tell of deaths at once, such as Docker engines, as long as sessions of theirs are attached.

A stream from a dead agentctl may seem to live for long where another machine was in between.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Hashable
from typing import Any

from executors_app.domain import Death
from executors_app.errors import ExecutorError
from executors_app.plugins import runtime
from executors_app.runtimes import TellsDeaths
from sessions_app.supervisor.core import Core

log = logging.getLogger(__name__)
COUNT_EVERY = 0.5
"""Seconds between two looks whom to listen to."""
LISTEN_ON = 60.0
"""Seconds for which one is listened to whose last session here is gone: what ended its stream may be told later."""

Source = tuple[str, Hashable]
"""Runtime, and who tells."""


class DeathWatch:
    """One listener for each source; ``look_for`` is called for a session that needs a look."""

    def __init__(self, core: Core, look_for: Callable[[uuid.UUID], None], listen_on: float = LISTEN_ON):
        self._core, self._look_for, self._listen_on = core, look_for, listen_on
        self._needed: dict[Source, float] = {}
        """When each was needed last."""
        self._listeners: dict[Source, asyncio.Task[None]] = {}
        self._silenced: dict[Source, set[uuid.UUID]] = {}
        """Sessions whose streams were ended because nobody answers there; looked for when somebody does."""

    async def keep(self) -> None:
        """Listen to those that attached sessions have, for a moment; a job to be repeated."""
        now = time.monotonic()
        needed = {source for one in self._core.attachments if (source := self._source_of(one)) is not None}
        self._needed |= dict.fromkeys(needed, now)
        for source in [source for source, at in self._needed.items() if now - at > self._listen_on]:
            del self._needed[source]
            self._silenced.pop(source, None)
            self._listeners.pop(source).cancel()
        for source in self._needed:
            if source not in self._listeners or self._listeners[source].done():
                self._listeners[source] = asyncio.create_task(self._listen(source), name=f"deaths {source[0]}")
        await asyncio.sleep(COUNT_EVERY)

    async def close(self) -> None:
        """Listen no more."""
        for task in self._listeners.values():
            task.cancel()
        await asyncio.gather(*self._listeners.values(), return_exceptions=True)

    async def _listen(self, source: Source) -> None:
        place = runtime(source[0])
        assert isinstance(place, TellsDeaths)  # noqa: S101  (it named the source)
        async for death in place.deaths(source[1]):
            if death.session_id:
                await self._died(death)
            elif death.silent:
                await self._fell_silent(source)
            else:
                for session_id in self._attached_to(source) | self._silenced.pop(source, set()):
                    self._look_for(session_id)

    async def _fell_silent(self, source: Source) -> None:
        """End the streams from there, which else seem to live until a connection times out."""
        ended = self._attached_to(source)
        self._silenced.setdefault(source, set()).update(ended)
        log.warning("nobody answers at the source of %d streams (%s)", len(ended), source[0])
        streams = [stream for session_id in ended if (stream := self._core.attached(session_id)) is not None]
        await asyncio.gather(*(stream.stop() for stream in streams))  # their ends are looked after like any other

    def _attached_to(self, source: Source) -> set[uuid.UUID]:
        return {session_id for session_id in list(self._core.attachments) if self._source_of(session_id) == source}

    async def _died(self, death: Death) -> None:
        try:
            session_id = uuid.UUID(death.session_id)
        except ValueError:
            return
        attachment = self._core.attached(session_id)
        if attachment is None or not death.ended:
            self._look_for(session_id)
        elif attachment.facts.state.get("container", death.place_id) == death.place_id:
            log.info("session %s: what it runs in has died", session_id)
            await attachment.stop()  # its end is looked after like any other

    def _source_of(self, session_id: uuid.UUID) -> Source | None:
        attachment = self._core.attachments.get(session_id)
        if attachment is None:
            return None
        try:
            place: Any = runtime(attachment.facts.runtime)
            if isinstance(place, TellsDeaths):
                return attachment.facts.runtime, place.source_of_deaths(attachment.facts)
        except ExecutorError as error:
            log.debug("session %s: nobody tells of its end: %s", session_id, error.message)
        return None
