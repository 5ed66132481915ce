"""The supervisor listens to the exit events of each engine while it has sessions there."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Hashable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from executors_app import plugins
from executors_app.wire.errors import RuntimeUnavailable
from executors_app.wire.executions import ExitEvent
from sessions_app.recovery.recheck_queue import ExitEventListener
from sessions_app.supervisor.change_counter import ChangeCounter
from tests.waiting import eventually_async


@dataclass
class ExitEventRuntime:
    """A runtime that reports the exit events of its queue."""

    queue: asyncio.Queue[ExitEvent] = field(default_factory=asyncio.Queue)
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
                yield await self.queue.get()
        finally:
            self.listeners.remove(source)


class FakeStream:
    """A stream that can only be stopped."""

    def __init__(self, engine: str):
        self.facts = SimpleNamespace(runtime="telling", engine=engine, state={"container": "box"})
        self.stopped = False

    async def stop(self) -> None:
        """Record the stop."""
        self.stopped = True


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> ExitEventRuntime:
    """Return the only runtime of the test."""
    made = ExitEventRuntime()
    monkeypatch.setattr(plugins, "runtimes", lambda: {"telling": made})
    return made


class ListenerHarness:
    """A listener, its streams, and the sessions that it asked to check."""

    def __init__(self, *engines: str, linger: float = 0.0):
        self.attached = {uuid.uuid4(): FakeStream(engine) for engine in engines}
        self.checked: list[uuid.UUID] = []
        registry: Any = SimpleNamespace(streams=self.attached, stream_of=self.attached.get, changes=ChangeCounter())
        self.watch = ExitEventListener(registry, self.checked.append, linger)

    async def __aenter__(self) -> Self:
        await self.watch.refresh_listeners()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.watch.close()


async def test_each_engine_has_one_listener_while_it_has_sessions(runtime: ExitEventRuntime) -> None:
    async with ListenerHarness("one", "one", "two", "broken") as watched:
        assert sorted(map(str, runtime.listeners)) == ["one", "two"]
        for key in [key for key, one in watched.attached.items() if one.facts.engine == "one"]:
            del watched.attached[key]
        await watched.watch.refresh_listeners()
        assert runtime.listeners == ["two"]
    assert runtime.listeners == []


async def test_exit_event_after_the_stream_ended_still_triggers_a_check(runtime: ExitEventRuntime) -> None:
    async with ListenerHarness("one", linger=60.0) as watched:
        (gone,) = watched.attached
        del watched.attached[gone]
        await watched.watch.refresh_listeners()
        runtime.queue.put_nowait(ExitEvent(str(gone), "box"))
        await eventually_async(lambda: watched.checked == [gone], describe="the session is checked")


async def test_exit_event_stops_the_stream_of_its_session(runtime: ExitEventRuntime) -> None:
    async with ListenerHarness("one", "one") as watched:
        first, second = watched.attached
        runtime.queue.put_nowait(ExitEvent(str(first), "box"))
        await eventually_async(lambda: watched.attached[first].stopped, describe="its stream has stopped")
        assert not watched.attached[second].stopped
        assert watched.checked == []


@pytest.mark.parametrize("late", [ExitEvent("", "an earlier box"), ExitEvent("", "box", ended=False)])
async def test_exit_of_an_earlier_container_or_a_part_stops_no_stream(
    runtime: ExitEventRuntime, late: ExitEvent
) -> None:
    async with ListenerHarness("one", "one") as watched:
        first, second = watched.attached
        runtime.queue.put_nowait(replace(late, session_id=str(first)))
        runtime.queue.put_nowait(ExitEvent(str(second), "box"))
        await eventually_async(lambda: watched.attached[second].stopped, describe="the second stream has stopped")
        assert not watched.attached[first].stopped


async def test_exit_of_a_session_without_a_stream_triggers_a_check(runtime: ExitEventRuntime) -> None:
    async with ListenerHarness("one") as watched:
        lost = uuid.uuid4()
        runtime.queue.put_nowait(ExitEvent("no session", "box"))
        runtime.queue.put_nowait(ExitEvent(str(lost), "box"))
        await eventually_async(lambda: watched.checked == [lost], describe="the session is checked")


async def test_possibly_missed_events_trigger_a_check_of_the_whole_engine(runtime: ExitEventRuntime) -> None:
    async with ListenerHarness("one", "one") as watched:
        runtime.queue.put_nowait(ExitEvent(""))
        await eventually_async(
            lambda: set(watched.checked) == set(watched.attached), describe="all sessions are checked"
        )
        assert not any(one.stopped for one in watched.attached.values())


async def test_silent_event_source_stops_streams_and_is_checked_when_back(runtime: ExitEventRuntime) -> None:
    async with ListenerHarness("one", "one") as watched:
        streams, sessions = list(watched.attached.values()), set(watched.attached)
        runtime.queue.put_nowait(ExitEvent("", silent=True))
        await eventually_async(lambda: all(one.stopped for one in streams), describe="all streams have stopped")
        assert watched.checked == [], "no session is checked while its stream still ends"
        watched.attached.clear()
        runtime.queue.put_nowait(ExitEvent(""))
        await eventually_async(lambda: set(watched.checked) == sessions, describe="the sessions are checked")
