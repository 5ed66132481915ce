"""While the database is unavailable the loops wait together, and each failure is logged once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import OperationalError

from sessions_app.kernel.database_threads import DatabaseThread
from sessions_app.supervisor import database_outage, loop
from sessions_app.supervisor.database_outage import DatabaseOutage
from sessions_app.supervisor.dispatcher import SessionQueue
from tests.waiting import eventually_async

pytestmark = pytest.mark.django_db(transaction=True)


class UnavailableDatabase:
    """A database that can be unavailable and counts connection attempts."""

    def __init__(self) -> None:
        self.is_unavailable = True
        self.connections = 0

    def connect(self) -> None:
        """Count one connection."""
        self.connections += 1
        if self.is_unavailable:
            raise OperationalError("database is locked")


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> UnavailableDatabase:
    made = UnavailableDatabase()
    monkeypatch.setattr(database_outage, "_database_answers", made.connect)
    monkeypatch.setattr(database_outage, "STABLE_AFTER", 0.05)
    return made


@contextmanager
def logged_problems(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Collect the warnings and errors logged; none of them has a traceback."""
    lines: list[str] = []
    yield lines
    records = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert all(one.exc_info is None for one in records)
    lines += [one.getMessage() for one in records]


def run_with_outage(work: Callable[[DatabaseOutage], Awaitable[None]]) -> None:
    async def run() -> None:
        thread = DatabaseThread("orders")
        made = DatabaseOutage(thread)
        try:
            await work(made)
        finally:
            await made.close()
            thread.close()

    asyncio.run(run())


def test_loops_wait_together_and_the_outage_is_logged_once(
    database: UnavailableDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    tries, back = [0] * 8, [0] * 8

    def job(number: int) -> Callable[[], Awaitable[None]]:
        async def look() -> None:
            tries[number] += 1
            if database.is_unavailable:
                raise OperationalError("database is locked")
            back[number] += 1
            await asyncio.Event().wait()

        return look

    async def work(made: DatabaseOutage) -> None:
        tasks = [asyncio.create_task(loop._repeat_forever("job", job(number), made)) for number in range(8)]
        await eventually_async(lambda: database.connections >= 3, describe="three connections were tried")
        assert tries == [1] * 8, "no job is retried during the outage"
        database.is_unavailable = False
        await eventually_async(lambda: back == [1] * 8, describe="all jobs continue")
        await eventually_async(lambda: "can be used again" in caplog.text, describe="the end of the outage is logged")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with logged_problems(caplog) as lines:
        run_with_outage(work)
    first, last = lines
    assert first == "the database cannot be used, waiting for it: database is locked"
    assert last.startswith("the database can be used again, after ")


def test_session_queues_wait_with_the_loops(database: UnavailableDatabase, caplog: pytest.LogCaptureFixture) -> None:
    steps = []

    async def step() -> None:
        steps.append(database.is_unavailable)
        if database.is_unavailable:
            raise OperationalError("database is locked")

    async def work(made: DatabaseOutage) -> None:
        lanes = [SessionQueue(step, made) for _ in range(5)]
        for lane in lanes:
            lane.wake()
        await eventually_async(lambda: database.connections >= 2, describe="two connections were tried")
        database.is_unavailable = False
        await asyncio.gather(*(lane.task for lane in lanes if lane.task))

    with logged_problems(caplog) as lines:
        run_with_outage(work)
    assert (steps.count(True), steps.count(False)) == (5, 5)
    assert lines[:1] == ["the database cannot be used, waiting for it: database is locked"]
    assert len(lines) <= 2


def test_unwritable_database_is_logged_as_one_outage(
    database: UnavailableDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    database.is_unavailable = False

    async def work(made: DatabaseOutage) -> None:
        for _ in range(3):
            await made.wait(OperationalError("database or disk is full"))

    with logged_problems(caplog) as lines:
        run_with_outage(work)
    assert lines == ["the database cannot be used, waiting for it: database or disk is full"]


def test_repeated_failure_of_a_loop_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    tries: list[None] = []

    async def job() -> None:
        tries.append(None)
        if len(tries) == 4:
            raise KeyError("another mistake")
        raise ValueError("a mistake")

    async def work(made: DatabaseOutage) -> None:
        task = asyncio.create_task(loop._repeat_forever("job", job, made))
        await eventually_async(lambda: len(tries) == 4, describe="four writes were tried")
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    run_with_outage(work)
    records = [one.exc_info[0] for one in caplog.records if one.exc_info]
    assert records[:1] == [ValueError]
    assert records.count(ValueError) == 1
