"""The queue of sessions that need a recheck at once, and the listeners for exit events of container engines.

A recheck is a sweep of just these sessions.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any, Final

from executors_app.backoff import Backoff
from executors_app.plugins import runtime
from executors_app.runtimes import SupportsExitEvents
from executors_app.wire.errors import ExecutorError
from executors_app.wire.executions import ExitEvent
from sessions_app.supervisor.execution_registry import ExecutionRegistry

RETRY_UNKNOWN_AFTER: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds before each further recheck of a session that was observed as unknown; then the regular sweeps take over.

A container engine reports an exit some moments before it lists the container as dead.
"""


class RecheckQueue:
    """A set of sessions to recheck: adding one several times before it is taken rechecks it once."""

    def __init__(self) -> None:
        self._sessions: set[uuid.UUID] = set()
        self._not_empty = asyncio.Event()
        self._attempts: dict[uuid.UUID, int] = {}
        """How many rechecks of a session in a row have found it unknown."""
        self._backoffs: dict[uuid.UUID, Backoff] = {}
        """Back-off of sessions whose agents end again and again."""

    def add(self, sessions: Iterable[uuid.UUID]) -> None:
        """Add sessions that need a recheck."""
        self._sessions.update(sessions)
        self._not_empty.set()

    def add_one(self, session_id: uuid.UUID) -> None:
        """Add one session that needs a recheck."""
        self.add((session_id,))

    def add_lost(self, session_id: uuid.UUID) -> None:
        """Add a session whose agent or stream ended unexpectedly: at once, with back-off if that keeps happening."""
        backoff = self._backoffs.setdefault(session_id, Backoff())
        if backoff.is_reset or not backoff.remaining:
            self.add_one(session_id)
        else:
            asyncio.get_running_loop().call_later(backoff.remaining, self.add_one, session_id)
        backoff.record_failure()

    def reset_backoff(self, session_id: uuid.UUID) -> None:
        """Forget the back-off of a session whose agent works."""
        self._backoffs.pop(session_id, None)

    async def take(self) -> frozenset[uuid.UUID]:
        """Wait until the queue has sessions, then remove and return all of them."""
        await self._not_empty.wait()
        self._not_empty.clear()
        taken, self._sessions = frozenset(self._sessions), set()
        return taken

    def record_result(self, taken: Iterable[uuid.UUID], unknown: Collection[uuid.UUID]) -> None:
        """Record a recheck; the sessions in ``unknown`` are added again after ``RETRY_UNKNOWN_AFTER``."""
        for session_id in taken:
            attempts = self._attempts.pop(session_id, 0)
            if session_id in unknown and attempts < len(RETRY_UNKNOWN_AFTER):
                self._attempts[session_id] = attempts + 1
                asyncio.get_running_loop().call_later(RETRY_UNKNOWN_AFTER[attempts], self.add_one, session_id)


log = logging.getLogger(__name__)
REFRESH_SOURCES_EVERY = 0.5
"""Seconds between two updates of the set of listeners."""
LISTEN_FOR = 60.0
"""Seconds for which a source is kept after its last stream here ended: the event that explains the end may be late."""

EventSource = tuple[str, Hashable]
"""The runtime's name, and the source of exit events within it, such as a container engine."""


class ExitEventListener:
    """Listens to the exit events of every source that an attached session has, with one task for each source.

    ``request_recheck`` is called with each session that needs a recheck.
    """

    def __init__(
        self, registry: ExecutionRegistry, request_recheck: Callable[[uuid.UUID], None], linger: float = LISTEN_FOR
    ):
        self._registry, self._request_recheck, self._linger = registry, request_recheck, linger
        self._needed: dict[EventSource, float] = {}
        """When each source was last needed, by the monotonic clock."""
        self._listeners: dict[EventSource, asyncio.Task[None]] = {}
        self._unreachable_streams: dict[EventSource, set[uuid.UUID]] = {}
        """Sessions whose streams were ended because the source fell silent; rechecked when it answers again."""

    async def refresh_listeners(self) -> None:
        """Start and stop listeners to match the attached sessions, then wait a moment; the loop repeats this job."""
        changes, now = self._registry.changes.count, time.monotonic()
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
        if not self._needed:
            await self._registry.changes.rest(changes)

    async def close(self) -> None:
        """Cancel all listeners."""
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
        """End the streams from a silent source: they would seem alive until their connections time out."""
        ended = self._sessions_of(source)
        self._unreachable_streams.setdefault(source, set()).update(ended)
        log.warning("the source of %d streams does not answer (%s)", len(ended), source[0])
        streams = [stream for session_id in ended if (stream := self._registry.stream_of(session_id)) is not None]
        await asyncio.gather(*(stream.stop() for stream in streams))  # each end requests a recheck, like any other

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
            log.info("session %s: its container or sandbox has died", session_id)
            await stream.stop()  # its end requests a recheck, like any other
        # Else the event is about an earlier container: the session has moved to another one.

    def _source_of(self, session_id: uuid.UUID) -> EventSource | None:
        stream = self._registry.streams.get(session_id)
        if stream is None:
            return None
        try:
            place: Any = runtime(stream.facts.runtime)
            if isinstance(place, SupportsExitEvents):
                return stream.facts.runtime, place.exit_event_source(stream.facts)
        except ExecutorError as error:
            log.debug("session %s: its runtime does not report its end: %s", session_id, error.message)
        return None
