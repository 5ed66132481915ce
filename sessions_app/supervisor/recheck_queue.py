"""Sessions that need a recheck now.

The queue of lost streams, and the listeners for exit events of container engines.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any, Final

from executors_app.domain import ExitEvent
from executors_app.errors import ExecutorError
from executors_app.plugins import runtime
from executors_app.runtimes import SupportsExitEvents
from sessions_app.supervisor.execution_registry import ExecutionRegistry

RETRY_UNKNOWN_AFTER: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds until one that nobody could tell anything of is looked at again; after them the loop's passes do.

An engine tells of a event some moments before it lists the container as dead.
"""


class RecheckQueue:
    """Each is taken once for however often it was told of; what is told of after that needs another look."""

    def __init__(self) -> None:
        self._sessions: set[uuid.UUID] = set()
        self._not_empty = asyncio.Event()
        self._attempts: dict[uuid.UUID, int] = {}
        """How often the unsure ones were looked at again."""

    def add(self, sessions: Iterable[uuid.UUID]) -> None:
        """These need a look."""
        self._sessions.update(sessions)
        self._not_empty.set()

    async def take(self) -> frozenset[uuid.UUID]:
        """All that need one, as soon as there are any; they are the caller's to look at."""
        await self._not_empty.wait()
        self._not_empty.clear()
        taken, self._sessions = frozenset(self._sessions), set()
        return taken

    def record_result(self, taken: Iterable[uuid.UUID], unknown: Collection[uuid.UUID]) -> None:
        """What came of the look: those that it could not tell anything of get another one soon."""
        for session_id in taken:
            attempts = self._attempts.pop(session_id, 0)
            if session_id in unknown and attempts < len(RETRY_UNKNOWN_AFTER):
                self._attempts[session_id] = attempts + 1
                asyncio.get_running_loop().call_later(RETRY_UNKNOWN_AFTER[attempts], self.add, (session_id,))


log = logging.getLogger(__name__)
REFRESH_SOURCES_EVERY = 0.5
"""Seconds between two looks whom to listen to."""
LISTEN_FOR = 60.0
"""Seconds for which one is listened to whose last session here is gone: what ended its stream may be told later."""

EventSource = tuple[str, Hashable]
"""Runtime, and who tells."""


class ExitEventListener:
    """One listener for each source; ``request_recheck`` is called for a session that needs a look."""

    def __init__(
        self, registry: ExecutionRegistry, request_recheck: Callable[[uuid.UUID], None], linger: float = LISTEN_FOR
    ):
        self._registry, self._request_recheck, self._linger = registry, request_recheck, linger
        self._needed: dict[EventSource, float] = {}
        """When each was needed last."""
        self._listeners: dict[EventSource, asyncio.Task[None]] = {}
        self._unreachable_streams: dict[EventSource, set[uuid.UUID]] = {}
        """Sessions whose streams were ended because nobody answers there; looked for when somebody does."""

    async def refresh_listeners(self) -> None:
        """Listen to those that attached sessions have, for a moment; a job to be repeated."""
        now = time.monotonic()
        needed = {source for one in self._registry.streams if (source := self._source_of(one)) is not None}
        self._needed |= dict.fromkeys(needed, now)
        for source in [source for source, at in self._needed.items() if now - at > self._linger]:
            del self._needed[source]
            self._unreachable_streams.pop(source, None)
            self._listeners.pop(source).cancel()
        for source in self._needed:
            if source not in self._listeners or self._listeners[source].done():
                self._listeners[source] = asyncio.create_task(self._listen(source), name=f"exit events {source[0]}")
        await asyncio.sleep(REFRESH_SOURCES_EVERY)

    async def close(self) -> None:
        """Listen no more."""
        for task in self._listeners.values():
            task.cancel()
        await asyncio.gather(*self._listeners.values(), return_exceptions=True)

    async def _listen(self, source: EventSource) -> None:
        place = runtime(source[0])
        assert isinstance(place, SupportsExitEvents)  # noqa: S101  (it named the source)
        async for event in place.exit_events(source[1]):
            if event.session_id:
                await self._on_exit(event)
            elif event.silent:
                await self._on_silence(source)
            else:
                for session_id in self._sessions_of(source) | self._unreachable_streams.pop(source, set()):
                    self._request_recheck(session_id)

    async def _on_silence(self, source: EventSource) -> None:
        """End the streams from there, which else seem to live until a connection times out."""
        ended = self._sessions_of(source)
        self._unreachable_streams.setdefault(source, set()).update(ended)
        log.warning("nobody answers at the source of %d streams (%s)", len(ended), source[0])
        streams = [stream for session_id in ended if (stream := self._registry.stream_of(session_id)) is not None]
        await asyncio.gather(*(stream.stop() for stream in streams))  # their ends are looked after like any other

    def _sessions_of(self, source: EventSource) -> set[uuid.UUID]:
        return {session_id for session_id in list(self._registry.streams) if self._source_of(session_id) == source}

    async def _on_exit(self, event: ExitEvent) -> None:
        try:
            session_id = uuid.UUID(event.session_id)
        except ValueError:
            return
        stream = self._registry.stream_of(session_id)
        if stream is None or not event.ended:
            self._request_recheck(session_id)
        elif stream.facts.state.get("container", event.place_id) == event.place_id:
            log.info("session %s: what it runs in has died", session_id)
            await stream.stop()  # its end is looked after like any other

    def _source_of(self, session_id: uuid.UUID) -> EventSource | None:
        stream = self._registry.streams.get(session_id)
        if stream is None:
            return None
        try:
            place: Any = runtime(stream.facts.runtime)
            if isinstance(place, SupportsExitEvents):
                return stream.facts.runtime, place.exit_event_source(stream.facts)
        except ExecutorError as error:
            log.debug("session %s: nobody tells of its end: %s", session_id, error.message)
        return None
