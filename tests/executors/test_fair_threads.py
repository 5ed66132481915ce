"""One slow repository leaves threads to the calls of others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from contextvars import ContextVar
from functools import partial

import pytest

from executors_app.fair_threads import FairThreads
from executors_app.repositories.workspace_store import in_git_thread
from executors_app.runtimes.containers import engine_threads
from executors_app.runtimes.containers.connection import EngineAddress

MANY = 100
NAME = ContextVar("NAME", default="")


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Yield an event that ends all calls that wait for it."""
    event = threading.Event()
    yield event
    event.set()


def wait(event: threading.Event) -> str:
    assert event.wait(60)
    return "waited"


async def test_slow_repository_leaves_threads_of_git_to_others(released: threading.Event) -> None:
    slow = [asyncio.create_task(in_git_thread("/srv/slow", wait, released)) for _ in range(MANY)]
    await asyncio.sleep(0)
    for _ in range(MANY):
        assert await asyncio.wait_for(in_git_thread("/srv/other", lambda: "answer"), 60) == "answer"
    assert not any(each.done() for each in slow)
    released.set()
    assert await asyncio.gather(*slow) == ["waited"] * MANY


async def test_slow_repository_leaves_threads_of_an_engine_to_others(
    released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_threads, "open_engine", lambda address, timeout: nullcontext())
    address = EngineAddress("unix:///slow")

    def call(repository: str, function: Callable[[], str]) -> asyncio.Task[str]:
        return asyncio.create_task(engine_threads.call_for_workspace(address, repository, lambda engine: function()))

    slow = [call("/srv/slow", lambda: wait(released)) for _ in range(MANY)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(call("/srv/other", lambda: "answer"), 60) == "answer"
    assert not any(each.done() for each in slow)
    released.set()
    assert await asyncio.gather(*slow) == ["waited"] * MANY


@pytest.mark.parametrize(("owners", "running"), [(1, [8]), (2, [8, 4]), (3, [8, 4, 2]), (5, [8, 4, 2, 1, 1])])
def test_no_owner_has_more_threads_than_are_free(owners: int, running: list[int], released: threading.Event) -> None:
    threads, begun = FairThreads(16, "test"), list[int]()
    arrived = threading.Semaphore(0)

    def call(owner: int) -> None:
        begun.append(owner)
        arrived.release()
        wait(released)

    calls = [threads.submit(str(owner), partial(call, owner)) for owner in range(owners) for _ in range(20)]
    for _ in range(sum(running)):
        assert arrived.acquire(timeout=60)
    assert [begun.count(owner) for owner in range(owners)] == running
    released.set()
    for each in calls:
        each.result(60)
    assert [begun.count(owner) for owner in range(owners)] == [20] * owners


async def test_call_has_the_context_and_the_error_of_its_function() -> None:
    threads = FairThreads(2, "test")
    NAME.set("mine")
    assert await threads.call("owner", NAME.get) == "mine"
    with pytest.raises(ZeroDivisionError):
        await threads.call("owner", lambda: 1 // 0)
    assert await threads.call("owner", lambda: "after") == "after"


def test_cancelled_call_is_not_made_and_frees_its_place(released: threading.Event) -> None:
    threads = FairThreads(2, "test")
    first = threads.submit("owner", lambda: wait(released))
    second = threads.submit("owner", lambda: pytest.fail("it was cancelled"))
    assert second.cancel()
    released.set()
    assert first.result(60) == "waited"
    assert threads.submit("owner", lambda: "after").result(60) == "after"
