"""The pool of limited processes: what a text costs is bounded, and costs nobody else anything."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Self

import pytest

from sessions_app.confined.admission import Admission, TooManyWaiting
from sessions_app.confined.client import ConfinedPool, Failure, OperationFailed, PoolUnavailable, TooExpensive
from sessions_app.confined.limits import Limits
from tests.waiting import eventually

LIMITS = Limits(cpu_seconds=2, seconds=60, memory=1 << 30)
SHORT = replace(LIMITS, cpu_seconds=0.3)


@pytest.fixture(scope="module")
def shared_pool() -> Iterator[ConfinedPool]:
    pool = ConfinedPool("tests.confined.operations", running=2, waiting_per_owner=2)
    yield pool
    pool.close()


@pytest.fixture
def pool(shared_pool: ConfinedPool) -> ConfinedPool:
    return shared_pool


def run(pool: ConfinedPool, operation: str, limits: Limits = LIMITS, owner: str = "ada", **arguments: Any) -> Any:
    return pool.run(operation, arguments, owner=owner, limits=limits)


def echo(pool: ConfinedPool, text: str = "x", owner: str = "ada") -> Any:
    return run(pool, "echo", owner=owner, text=text)["text"]


class Held:
    """A request that runs until it is released."""

    def __init__(self, pool: ConfinedPool, owner: str):
        self._release, started = threading.Event(), threading.Event()

        def answer(question: dict[str, Any]) -> dict[str, Any]:
            started.set()
            self._release.wait(60)
            return {}

        self._thread = threading.Thread(
            target=lambda: pool.run("wait_for_client", {}, owner=owner, limits=LIMITS, answering=answer)
        )
        self._thread.start()
        assert started.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._release.set()
        self._thread.join()


@pytest.mark.parametrize("text", ["", "é\u202e\0", "\ud800", "x" * (1 << 20)])
def test_text_arrives_unchanged(pool: ConfinedPool, text: str) -> None:
    assert echo(pool, text) == text


def test_each_request_has_its_own_process(pool: ConfinedPool) -> None:
    assert len({run(pool, "echo", text="x")["process"] for _ in range(3)}) == 3


@pytest.mark.parametrize("operation", ["burn", "stubborn", "burn_natively"])
def test_request_that_uses_its_processor_time_is_too_expensive(pool: ConfinedPool, operation: str) -> None:
    with pytest.raises(TooExpensive):
        run(pool, operation, SHORT)
    assert echo(pool) == "x"


@pytest.mark.parametrize(
    "request_", [("take_memory", {"size": 2 << 30}), ("long_result", {})], ids=lambda each: each[0]
)
def test_request_that_needs_too_much_memory_is_too_expensive(pool: ConfinedPool, request_: Any) -> None:
    operation, arguments = request_
    with pytest.raises(TooExpensive):
        run(pool, operation, **arguments)


@pytest.mark.parametrize("operation", ["sleep", "die"])
def test_text_is_not_blamed_for_other_ends(pool: ConfinedPool, operation: str) -> None:
    with pytest.raises(PoolUnavailable):
        run(pool, operation, replace(LIMITS, seconds=0.3))


def test_exception_of_an_operation_is_reported(pool: ConfinedPool) -> None:
    with pytest.raises(OperationFailed, match="a bug"):
        run(pool, "fail")


def test_operation_opens_no_file(pool: ConfinedPool) -> None:
    with pytest.raises(OperationFailed, match="Too many open files"):
        run(pool, "open_file")


def test_killed_server_is_replaced(pool: ConfinedPool) -> None:
    echo(pool)
    server = pool._process
    assert server is not None
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    assert echo(pool) == "x"


def test_stopped_server_fails_the_request_alone() -> None:
    pool = ConfinedPool("tests.confined.operations")
    echo(pool)
    server = pool._process
    assert server is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(PoolUnavailable):
            run(pool, "echo", replace(LIMITS, seconds=0.1), text="x")
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert echo(pool) == "x"
    pool.close()


def test_server_that_cannot_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    with pytest.raises(PoolUnavailable):
        echo(ConfinedPool("tests.confined.operations"))


def test_operations_that_cannot_be_imported_are_reported() -> None:
    with pytest.raises(PoolUnavailable):
        echo(ConfinedPool("tests.confined.nothing"))


def test_server_ends_with_its_pool() -> None:
    pool = ConfinedPool("tests.confined.operations")
    echo(pool)
    server = pool._process
    assert server is not None
    pool.close()
    assert server.returncode == 0


def test_forked_process_starts_its_own_server(pool: ConfinedPool) -> None:
    echo(pool)
    with Held(pool, "ada"):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if echo(pool) == "x" else 1
                pool.close()
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    assert echo(pool) == "x"


class TestOwners:
    """Requests of one owner run one after the other, and hold up nobody else."""

    def test_second_request_of_an_owner_waits(self, pool: ConfinedPool) -> None:
        with Held(pool, "ada"), pytest.raises(PoolUnavailable):
            run(pool, "echo", replace(LIMITS, seconds=0.1), text="x")
        assert echo(pool) == "x"

    def test_waiting_owner_holds_up_nobody_else(self, pool: ConfinedPool) -> None:
        with ThreadPoolExecutor(2) as threads:
            with Held(pool, "ada"):
                waiting = [threads.submit(echo, pool) for _ in range(2)]
                eventually(lambda: len(pool._admission._waiting["ada"]) == 2)
                assert echo(pool, owner="bea") == "x"
                assert not any(each.done() for each in waiting)
            assert [each.result(60) for each in waiting] == ["x", "x"]

    def test_only_few_requests_of_an_owner_wait(self, pool: ConfinedPool) -> None:
        with ThreadPoolExecutor(2) as threads, Held(pool, "ada"):
            for _ in range(2):
                threads.submit(echo, pool)
            eventually(lambda: len(pool._admission._waiting["ada"]) == 2)
            with pytest.raises(PoolUnavailable):
                echo(pool)

    def test_owners_share_the_slots_in_order(self) -> None:
        admission = Admission(running=1, waiting_per_owner=1)
        first, second, third = (admission.enter(owner) for owner in ("ada", "bea", "ida"))
        with pytest.raises(TooManyWaiting):
            admission.enter("ida")
        admission.leave(second)  # its deadline is over
        assert (first.admitted.done(), third.admitted.done()) == (True, False)
        admission.leave(first)
        assert third.admitted.done()

    def test_owner_with_many_requests_delays_others_by_one(self) -> None:
        admission = Admission(running=1, waiting_per_owner=None)
        tickets = [admission.enter(owner) for owner in ("ada", "ada", "ada", "bea", "ida", "bea")]
        order = list[str]()
        while tickets:
            ticket = next(ticket for ticket in tickets if ticket.admitted.done())
            order.append(ticket.owner)
            tickets.remove(ticket)
            admission.leave(ticket)
        assert order == ["ada", "ada", "bea", "ida", "ada", "bea"]

    def test_owner_runs_a_limited_number_of_requests(self) -> None:
        admission = Admission(running=3, waiting_per_owner=None, running_per_owner=2)
        tickets = [admission.enter("ada") for _ in range(3)]
        other = admission.enter("bea")
        assert [ticket.admitted.done() for ticket in (*tickets, other)] == [True, True, False, True]
        admission.leave(tickets[0])
        assert tickets[2].admitted.done()

    def test_reserved_places_are_for_owners_without_a_request(self) -> None:
        admission = Admission(running=4, waiting_per_owner=None, running_per_owner=3, reserved=2)
        tickets = [admission.enter(owner) for owner in ("ada", "ada", "ada", "bea", "bea", "ida", "eva")]
        assert [ticket.admitted.done() for ticket in tickets] == [True, True, False, True, False, True, False]
        admission.leave(tickets[0])
        assert [ticket.admitted.done() for ticket in tickets[2:]] == [False, True, False, True, True]

    def test_cancelled_request_is_passed_over(self) -> None:
        admission = Admission(running=1, waiting_per_owner=1)
        first, second, third = (admission.enter(owner) for owner in ("ada", "bea", "ida"))
        second.admitted.cancel()
        admission.leave(first)
        assert third.admitted.done()
        admission.leave(second)
        admission.leave(third)


class TestBatches:
    """One process reads many texts; one that is too expensive costs only itself."""

    def batch(self, pool: ConfinedPool, operation: str, items: list[dict[str, Any]], **limits: Any) -> list[Any]:
        outcomes = pool.run_batch(operation, items, owner="ada", **{"limits": LIMITS, **limits})
        return [outcome.failure or outcome.result for outcome in outcomes]

    def test_results_keep_their_order(self, pool: ConfinedPool) -> None:
        outcomes = self.batch(pool, "echo", [{"text": str(number)} for number in range(50)])
        assert [outcome["text"] for outcome in outcomes] == [str(number) for number in range(50)]
        assert len({outcome["process"] for outcome in outcomes}) == 1

    def test_empty_batch_needs_no_process(self) -> None:
        assert ConfinedPool("tests.confined.nothing").run_batch("echo", [], owner="ada", limits=LIMITS) == []

    def test_expensive_item_costs_only_itself(self, pool: ConfinedPool) -> None:
        items = [{"seconds": 0}, {"seconds": 60}, {"seconds": 0}]
        assert self.batch(pool, "burn", items, item_cpu_seconds=0.2) == [{}, Failure.TOO_EXPENSIVE, {}]

    def test_item_of_a_native_function_ends_the_batch(self, pool: ConfinedPool) -> None:
        outcomes = self.batch(pool, "burn_natively", [{}, {}], limits=SHORT, item_cpu_seconds=0.1)
        assert outcomes == [Failure.TOO_EXPENSIVE, Failure.NOT_REACHED]

    def test_batch_has_one_budget(self, pool: ConfinedPool) -> None:
        items = [{"seconds": 0.1}] * 50
        outcomes = self.batch(pool, "burn", items, limits=replace(LIMITS, cpu_seconds=0.5), item_cpu_seconds=0.2)
        assert outcomes[0] == {}
        assert outcomes[-1] == Failure.NOT_REACHED
        assert 2 <= outcomes.count({}) <= 5

    @pytest.mark.parametrize("last", [{"operation": "burn"}, {"operation": "burn_natively"}], ids=str)
    def test_item_without_its_whole_share_of_the_time_is_tried_again(
        self, pool: ConfinedPool, last: dict[str, Any]
    ) -> None:
        items = [{"operation": "burn", "seconds": 0.3}, last]
        limits = replace(LIMITS, cpu_seconds=0.6)
        outcomes = self.batch(pool, "any_operation", items, limits=limits, item_cpu_seconds=0.5)
        assert outcomes == [{}, Failure.NOT_REACHED]
        alone = self.batch(pool, "any_operation", [last], limits=limits, item_cpu_seconds=0.5)
        assert alone == [Failure.TOO_EXPENSIVE]

    def test_broken_item_costs_only_itself(self, pool: ConfinedPool) -> None:
        outcomes = pool.run_batch("fail", [{}, {}], owner="ada", limits=LIMITS)
        assert [outcome.failure for outcome in outcomes] == [Failure.BROKEN, Failure.BROKEN]
        assert "a bug" in outcomes[0].traceback

    def test_batch_whose_process_dies_is_not_blamed(self, pool: ConfinedPool) -> None:
        assert self.batch(pool, "die", [{}, {}]) == [Failure.NOT_REACHED, Failure.NOT_REACHED]


class TestEventLoop:
    """An event loop is never blocked."""

    def test_loop_runs_while_a_request_does(self, pool: ConfinedPool) -> None:
        async def both() -> list[Any]:
            slow = asyncio.create_task(
                pool.run_async("sleep", {}, owner="ada", limits=replace(LIMITS, seconds=1)),
            )
            others = [
                await pool.run_async("echo", {"text": "x"}, owner="bea", limits=LIMITS)
                for _ in range(3)
                if not slow.done()
            ]
            with pytest.raises(PoolUnavailable):
                await slow
            return others

        assert asyncio.run(both())

    def test_request_waits_for_its_owner(self, pool: ConfinedPool) -> None:
        async def waiting() -> None:
            with pytest.raises(PoolUnavailable):
                await pool.run_async("echo", {"text": "x"}, owner="ada", limits=replace(LIMITS, seconds=0.1))

        with Held(pool, "ada"):
            asyncio.run(waiting())
        assert echo(pool) == "x"

    def test_cancelled_request_frees_its_place(self, pool: ConfinedPool) -> None:
        async def cancelled() -> None:
            task = asyncio.create_task(pool.run_async("echo", {"text": "x"}, owner="ada", limits=LIMITS))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        with Held(pool, "ada"):
            asyncio.run(cancelled())
            assert not pool._admission._waiting
        assert echo(pool) == "x"
