"""A Docker engine that does not answer keeps nobody waiting who calls another one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from executors_app.runtimes.containers import lifecycle
from executors_app.runtimes.containers.connection import EngineAddress
from executors_app.runtimes.containers.engine import Engine
from executors_app.runtimes.containers.engine_threads import call_engine, call_for_workspace
from executors_app.runtimes.containers.runtime import DockerRuntime
from executors_app.wire.errors import ExecutorError

BODY = b'{"ID": "works", "ApiVersion": "1.44"}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
MORE_THAN_ITS_THREADS = 40


@pytest_asyncio.fixture
async def working(tmp_path: Path) -> AsyncIterator[EngineAddress]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ANSWER)
        writer.close()

    async with await asyncio.start_unix_server(answer, tmp_path / "works"):
        yield EngineAddress(f"unix://{tmp_path / 'works'}")


@pytest_asyncio.fixture
async def silent(tmp_path: Path) -> AsyncIterator[EngineAddress]:
    """Yield an engine that accepts connections and never answers, until the test ends."""
    path = tmp_path / "silent"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(2 * MORE_THAN_ITS_THREADS)
        yield EngineAddress(f"unix://{path}")


def call(address: EngineAddress) -> Awaitable[str]:
    return call_engine(address, Engine.identity, 120)


def call_workspace(address: EngineAddress) -> Awaitable[str]:
    return call_for_workspace(address, "/srv/repository", Engine.identity)


@pytest.mark.parametrize("kind", [call, call_workspace])
async def test_silent_engine_delays_no_other_engine(
    silent: EngineAddress, working: EngineAddress, kind: Callable[[EngineAddress], Awaitable[str]]
) -> None:
    waiting = [asyncio.ensure_future(kind(silent)) for _ in range(MORE_THAN_ITS_THREADS)]
    await asyncio.sleep(0)
    for called in (call, call_workspace):
        assert await asyncio.wait_for(called(working), timeout=60) == "works"
    assert not any(each.done() for each in waiting)
    await end(waiting)


async def test_workspaces_that_wait_leave_threads_to_short_calls(working: EngineAddress) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(engine: Engine) -> None:
        asyncio.run_coroutine_threadsafe(ended.wait(), loop).result(120)

    waiting = [
        asyncio.create_task(call_for_workspace(working, f"/srv/{number}", wait))
        for number in range(MORE_THAN_ITS_THREADS)
    ]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(call_engine(working, Engine.identity), timeout=60) == "works"
    ended.set()
    await asyncio.gather(*waiting)


async def test_containers_that_take_long_to_stop_leave_threads_to_short_calls(
    working: EngineAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(*_: Any) -> bool:
        asyncio.run_coroutine_threadsafe(ended.wait(), loop).result(120)
        return True

    monkeypatch.setattr(lifecycle, "end_container", wait)
    monkeypatch.setattr(lifecycle, "remove_container", wait)
    one: Any = SimpleNamespace(config={}, session_id="one")
    runtime: Any = SimpleNamespace(site=lambda _: SimpleNamespace(address=working), addresses=lambda _: {working})
    stops = [DockerRuntime.end(runtime, one), DockerRuntime.remove_orphan(runtime, one, [])]
    stops += [DockerRuntime.end(runtime, one) for _ in range(MORE_THAN_ITS_THREADS)]
    waiting = [asyncio.create_task(stop) for stop in stops]
    await asyncio.sleep(0)
    try:
        assert await asyncio.wait_for(call_engine(working, Engine.identity), timeout=60) == "works"
    finally:
        ended.set()
        assert set(await asyncio.gather(*waiting)) == {True}


async def end(waiting: Sequence[asyncio.Future[str]]) -> None:
    for each in waiting:
        each.cancel()
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, asyncio.CancelledError | ExecutorError)
