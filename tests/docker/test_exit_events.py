"""Exit events of containers arrive from the engine, even when the connection is interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from executors_app.runtimes.containers import exit_events
from executors_app.runtimes.containers.sites import container_name
from executors_app.wire.executions import ExitEvent, LaunchSpec
from tests.docker.harness import DockerHarness
from tests.executors.harness import row_of, spec_for
from tests.waiting import PATIENCE, eventually_async

NOTICED_WITHIN = 2.0


class ReceivedExitEvents:
    """The exit events that have arrived so far."""

    def __init__(self) -> None:
        self.exit_events: list[ExitEvent] = []

    @property
    def sessions(self) -> list[str]:
        """Return the ids of the sessions whose containers exited."""
        return [death.session_id for death in self.exit_events]

    async def wait_for_exit(self, spec: LaunchSpec, within: float = NOTICED_WITHIN) -> None:
        """Wait until the exit of a launch's container has been reported."""
        await eventually_async(
            lambda: spec.session_id in self.sessions, timeout=within, describe="the exit is reported"
        )


@asynccontextmanager
async def listening_to_exits(harness: DockerHarness) -> AsyncIterator[ReceivedExitEvents]:
    """Listen to the engine's exit events during the block; yield what arrives."""
    received = ReceivedExitEvents()
    source = harness.runtime.exit_event_source(row_of(harness, spec_for(harness)))

    async def listen() -> None:
        async for event in harness.runtime.exit_events(source):
            received.exit_events.append(event)

    calls = len(harness.engine.calls())
    task = asyncio.create_task(listen())
    await eventually_async(
        lambda: any("/events" in call for call in harness.engine.calls()[calls:]),
        timeout=PATIENCE,
        describe="the engine is asked for events",
    )
    try:
        yield received
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def _short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten connections so that they end and begin during a test, and no listener outlasts it for long."""
    monkeypatch.setattr(exit_events, "WINDOW_SECONDS", 2)


async def test_exit_events_arrive_within_two_seconds(harness: DockerHarness, spec: LaunchSpec) -> None:
    other = spec_for(harness)
    launched = await harness.runtime.launch(spec)
    async with listening_to_exits(harness) as received:
        await harness.runtime.launch(other)
        harness.kill(spec)
        await received.wait_for_exit(spec)
        assert received.exit_events == [ExitEvent(spec.session_id, launched.container_id)]


async def test_removed_container_is_reported_and_helpers_are_not(harness: DockerHarness, spec: LaunchSpec) -> None:
    await harness.runtime.launch(spec)
    async with listening_to_exits(harness) as received:
        with harness.client() as client:
            client.create_container("kandev-agentctl:test", name="stranger")
            client.remove_container("stranger")
            client.remove_container(container_name(spec.execution_id), force=True)
        await received.wait_for_exit(spec)
        assert set(received.sessions) == {spec.session_id}


async def test_each_exit_is_reported_across_reconnections(harness: DockerHarness) -> None:
    specs = [spec_for(harness) for _ in range(3)]
    for spec in specs:
        await harness.runtime.launch(spec)
    calls = len(harness.engine.calls())
    async with listening_to_exits(harness) as received:
        for spec in specs:
            harness.kill(spec)
            await received.wait_for_exit(spec)
            await wait_for_reconnection(harness)
    assert sum("/events" in call for call in harness.engine.calls()[calls:]) >= 3
    assert received.sessions == [spec.session_id for spec in specs], "no exit is reported twice"


async def wait_for_reconnection(harness: DockerHarness) -> None:
    """Wait until the engine has received another request for events."""
    calls = len(harness.engine.calls())

    def is_requested() -> bool:
        return any("/events" in call for call in harness.engine.calls()[calls:])

    await eventually_async(is_requested, describe="there is another connection")


async def test_sessions_are_rechecked_after_an_engine_was_away(
    harness: DockerHarness, spec: LaunchSpec, settings: Any
) -> None:
    await harness.runtime.launch(spec)
    async with listening_to_exits(harness) as received:
        harness.engine.stop()
        calls = len(harness.engine.calls())
        harness.engine.start()
        await eventually_async(
            lambda: exit_events.CHECK_ALL in received.exit_events, timeout=60, describe="all containers are checked"
        )
        requests = [call for call in harness.engine.calls()[calls:] if "/events" in call]
    assert len(requests) <= 4, "the connections back off"


async def test_agent_out_of_memory_is_reported(harness: DockerHarness, spec: LaunchSpec) -> None:
    eater = "import mmap; m = mmap.mmap(-1, 1 << 30); [m.write(b'x' * 1048576) for _ in range(1024)]"
    await harness.runtime.launch(replace(spec, config={"memory_mb": 256}))
    async with listening_to_exits(harness) as received:
        await asyncio.to_thread(harness.run, spec, "python3", "-I", "-c", eater)
        await received.wait_for_exit(spec)
        assert not received.exit_events[0].ended, "the container runs"
