"""The supervisor listens for exit events of each engine, as long as it has sessions there."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Hashable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from executors_app import plugins
from executors_app.domain import ExitEvent
from executors_app.errors import RuntimeUnavailable
from sessions_app.supervisor.recheck_queue import ExitEventListener
from tests.waiting import eventually_async


@dataclass
class TellingRuntime:
    """A runtime that reports the exit events of its queue."""

    told: asyncio.Queue[ExitEvent] = field(default_factory=asyncio.Queue)
    listeners: list[Hashable] = field(default_factory=list)

    def exit_event_source(self, execution: Any) -> Hashable:
        """Return the engine that the execution names."""
        if execution.engine == "broken":
            raise RuntimeUnavailable
        return cast("Hashable", execution.engine)

    async def exit_events(self, source: Hashable) -> AsyncIterator[ExitEvent]:
        """Yield the events of the queue."""
        self.listeners.append(source)
        try:
            while True:
                yield await self.told.get()
        finally:
            self.listeners.remove(source)


class Attached:
    """A stream that can only be stopped."""

    def __init__(self, engine: str):
        self.facts = SimpleNamespace(runtime="telling", engine=engine, state={"container": "box"})
        self.stopped = False

    async def stop(self) -> None:
        """Record the stop."""
        self.stopped = True


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch) -> TellingRuntime:
    """The only runtime of the test."""
    made = TellingRuntime()
    monkeypatch.setattr(plugins, "runtimes", lambda: {"telling": made})
    return made


class Watched:
    """A watch, its streams, and the sessions that it wants checked."""

    def __init__(self, *engines: str, linger: float = 0.0):
        self.attached = {uuid.uuid4(): Attached(engine) for engine in engines}
        self.looks: list[uuid.UUID] = []
        registry: Any = SimpleNamespace(streams=self.attached, stream_of=self.attached.get)
        self.watch = ExitEventListener(registry, self.looks.append, linger)

    async def __aenter__(self) -> Self:
        await self.watch.refresh_listeners()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.watch.close()


async def test_each_engine_has_one_listener_while_it_has_sessions(telling: TellingRuntime) -> None:
    async with Watched("one", "one", "two", "broken") as watched:
        assert sorted(map(str, telling.listeners)) == ["one", "two"]
        for key in [key for key, one in watched.attached.items() if one.facts.engine == "one"]:
            del watched.attached[key]
        await watched.watch.refresh_listeners()
        assert telling.listeners == ["two"]
    assert telling.listeners == []


async def test_exit_event_after_the_stream_ended_still_triggers_a_check(telling: TellingRuntime) -> None:
    async with Watched("one", linger=60.0) as watched:
        (gone,) = watched.attached
        del watched.attached[gone]
        await watched.watch.refresh_listeners()
        telling.told.put_nowait(ExitEvent(str(gone), "box"))
        await eventually_async(lambda: watched.looks == [gone], describe="it is looked for")


async def test_exit_event_stops_the_stream_of_its_session(telling: TellingRuntime) -> None:
    async with Watched("one", "one") as watched:
        first, second = watched.attached
        telling.told.put_nowait(ExitEvent(str(first), "box"))
        await eventually_async(lambda: watched.attached[first].stopped, describe="its stream is ended")
        assert not watched.attached[second].stopped
        assert watched.looks == []


@pytest.mark.parametrize("late", [ExitEvent("", "an earlier box"), ExitEvent("", "box", ended=False)])
async def test_exit_of_an_earlier_container_or_a_part_stops_no_stream(telling: TellingRuntime, late: ExitEvent) -> None:
    async with Watched("one", "one") as watched:
        first, second = watched.attached
        telling.told.put_nowait(replace(late, session_id=str(first)))
        telling.told.put_nowait(ExitEvent(str(second), "box"))
        await eventually_async(lambda: watched.attached[second].stopped, describe="both were heard")
        assert not watched.attached[first].stopped


async def test_exit_of_a_session_without_a_stream_triggers_a_check(telling: TellingRuntime) -> None:
    async with Watched("one") as watched:
        lost = uuid.uuid4()
        telling.told.put_nowait(ExitEvent("no session", "box"))
        telling.told.put_nowait(ExitEvent(str(lost), "box"))
        await eventually_async(lambda: watched.looks == [lost], describe="it is looked for")


async def test_possibly_missed_events_trigger_a_check_of_the_whole_engine(telling: TellingRuntime) -> None:
    async with Watched("one", "one") as watched:
        telling.told.put_nowait(ExitEvent(""))
        await eventually_async(lambda: set(watched.looks) == set(watched.attached), describe="all are looked for")
        assert not any(one.stopped for one in watched.attached.values())


async def test_silent_event_source_stops_streams_and_is_checked_when_back(telling: TellingRuntime) -> None:
    async with Watched("one", "one") as watched:
        streams, sessions = list(watched.attached.values()), set(watched.attached)
        telling.told.put_nowait(ExitEvent("", silent=True))
        await eventually_async(lambda: all(one.stopped for one in streams), describe="its streams are ended")
        assert watched.looks == [], "the end of each stream is looked after by itself"
        watched.attached.clear()
        telling.told.put_nowait(ExitEvent(""))
        await eventually_async(lambda: set(watched.looks) == sessions, describe="they are looked for")
