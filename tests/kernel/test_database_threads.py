"""Simultaneous requests are executed in one call, in order, and a failure affects only its own request."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from sessions_app.kernel import actor_context, database_threads
from sessions_app.kernel.database_threads import BatchExecutor, DatabaseThread
from tests.waiting import PATIENCE, eventually_async


@dataclass(frozen=True)
class Request:
    """A request for one session."""

    word: str
    session_id: uuid.UUID = field(default_factory=uuid.uuid4)


class Work:
    """Work that converts words to capitals, records its calls, and fails for configured words."""

    def __init__(self) -> None:
        self.calls: list[list[Request]] = []
        self.raises = self.refuses = ""
        self.has_begun, self.let = threading.Event(), threading.Event()
        self.let.set()

    def __call__(self, requests: Sequence[Request]) -> list[str | Exception]:
        self.has_begun.set()
        assert self.let.wait(PATIENCE)
        self.calls.append(list(requests))
        if any(request.word == self.raises for request in requests):
            raise OSError("all of it")
        return [
            KeyError(request.word) if request.word == self.refuses else request.word.upper() for request in requests
        ]

    @property
    def words(self) -> list[list[str]]:
        """Return the words of each call."""
        return [sorted(request.word for request in call) for call in self.calls]


Executor = BatchExecutor[Request, str]


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def thread() -> Iterator[DatabaseThread]:
    made = DatabaseThread("together")
    yield made
    made.close()


def run_batches(thread: DatabaseThread, work: Work, what: Callable[[Executor], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        return await asyncio.wait_for(what(BatchExecutor(thread, work)), PATIENCE)

    return asyncio.run(run())


def send_all(*words: str) -> Callable[[Executor], Awaitable[Any]]:
    return lambda do: asyncio.gather(*(do(Request(word)) for word in words), return_exceptions=True)


def test_simultaneous_requests_are_one_call(thread: DatabaseThread, work: Work) -> None:
    assert run_batches(thread, work, send_all("a", "b", "c")) == ["A", "B", "C"]
    assert work.words == [["a", "b", "c"]]


def test_requests_during_a_call_are_in_the_next_one(thread: DatabaseThread, work: Work) -> None:
    async def request_while_busy(do: Executor) -> list[str]:
        work.let.clear()
        first = asyncio.create_task(do(Request("a")))
        await eventually_async(work.has_begun.is_set)
        others = [asyncio.create_task(do(Request(word))) for word in "bc"]
        await asyncio.sleep(0)
        work.let.set()
        return await asyncio.gather(first, *others)

    assert run_batches(thread, work, request_while_busy) == ["A", "B", "C"]
    assert work.words == [["a"], ["b", "c"]]


def test_calls_are_limited_to_the_maximum_batch(
    thread: DatabaseThread, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_threads, "MAX_BATCH", 2)
    assert run_batches(thread, work, send_all(*"abcde")) == list("ABCDE")
    assert [len(call) for call in work.calls] == [2, 2, 1]


def test_call_orders_its_requests_by_session(thread: DatabaseThread, work: Work) -> None:
    run_batches(thread, work, send_all(*map(str, range(20))))
    (call,) = work.calls
    assert call == sorted(call, key=lambda request: request.session_id)


def test_error_is_raised_only_for_its_own_request(thread: DatabaseThread, work: Work) -> None:
    work.refuses = "b"
    first, refused, last = run_batches(thread, work, send_all("a", "b", "c"))
    assert (first, type(refused), last) == ("A", KeyError, "C")
    assert len(work.calls) == 1


def test_request_that_fails_the_call_does_not_fail_others(thread: DatabaseThread, work: Work) -> None:
    work.raises = "b"
    first, failed, last = run_batches(thread, work, send_all("a", "b", "c"))
    assert (first, type(failed), last) == ("A", OSError, "C")
    assert sorted(work.words) == [["a"], ["a", "b", "c"], ["b"], ["c"]]


def test_cancelled_request_is_not_carried_out(thread: DatabaseThread, work: Work) -> None:
    async def cancel_one(do: Executor) -> str:
        work.let.clear()
        first = asyncio.create_task(do(Request("a")))
        await eventually_async(work.has_begun.is_set)
        gone = asyncio.create_task(do(Request("b")))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        work.let.set()
        await first
        return await do(Request("c"))

    assert run_batches(thread, work, cancel_one) == "C"
    assert work.words == [["a"], ["c"]]


def test_cancellation_during_a_call_does_not_affect_others(thread: DatabaseThread, work: Work) -> None:
    async def cancel_one(do: Executor) -> str:
        work.let.clear()
        gone, stays = (asyncio.create_task(do(Request(word))) for word in "ab")
        await eventually_async(work.has_begun.is_set)
        gone.cancel()
        work.let.set()
        return await stays

    assert run_batches(thread, work, cancel_one) == "B"


def test_batch_runs_without_the_callers_actor_context(thread: DatabaseThread) -> None:
    seen: list[actor_context.ActorContext] = []

    def look(requests: Sequence[Request]) -> list[str | Exception]:
        seen.append(dict(actor_context.current_context()))
        return [request.word for request in requests]

    async def request_as_actor() -> None:
        with actor_context.acting_as(owner="me", cause="boot sweep", session_id="s"):
            await BatchExecutor(thread, look)(Request("a"))

    asyncio.run(request_as_actor())
    assert seen == [{"owner": "me"}]
