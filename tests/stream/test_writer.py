"""Lines of many streams are written together, with pauses for other writers; a failure affects only its own stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from executors_app.orm import FEW
from sessions_app.journal import LineApplier
from sessions_app.kernel.database_threads import DatabaseThread
from sessions_app.kernel.locking import LockTimer
from sessions_app.models import Lease, LeaseLost, Task, TaskSession
from sessions_app.stream.ingest import writer as writers
from sessions_app.stream.ingest.batches import Batch, IngestResult, LineBuffer, Written, write_batches
from sessions_app.stream.ingest.writer import COMMIT_INTERVAL, JournalWriter
from tests.supervisor.journals import Journal
from tests.supervisor.rows import MINE, conversation, names, running_session
from tests.waiting import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)

SOMEBODY_ELSE = Lease("somebody else", 1)


class Commits:
    """A stand-in for ``write_batches`` that records each transaction: its times and its number of sessions."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float, float]] = []
        self.sizes: list[int] = []
        self.failures: list[Exception] = []
        """The errors of the next transactions."""

    def __call__(self, batches: Sequence[Batch], timer: LockTimer) -> Written:
        began = time.monotonic()
        if self.failures:
            raise self.failures.pop(0)
        written = write_batches(batches, timer)
        assert not connection.in_atomic_block
        assert connection.vendor != "sqlite" or not connection.connection.in_transaction
        self.times.append((began, time.monotonic(), timer.seconds))
        self.sizes.append(len(batches))
        return written


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    seen = Commits()
    monkeypatch.setattr(writers, "write_batches", seen)
    monkeypatch.setattr(writers, "RETRY_AFTER", 0.05)
    return seen


@pytest.fixture
def thread() -> Iterator[DatabaseThread]:
    made = DatabaseThread("writer")
    yield made
    made.close()


def batches_of(
    sessions: Sequence[TaskSession], words: str = "hello"
) -> list[tuple[TaskSession, list[dict[str, object]]]]:
    return [(session, Journal().says(*words)) for session in sessions]


def test_waiting_batches_are_written_in_one_transaction(commits: Commits, thread: DatabaseThread) -> None:
    sessions = [running_session() for _ in range(5)]

    async def write_concurrently() -> None:
        write = JournalWriter(thread)
        await asyncio.gather(*(write(session.id, MINE, lines, None) for session, lines in batches_of(sessions)))

    asyncio.run(write_concurrently())
    assert commits.sizes == [5]
    assert [conversation(session)[0][1] for session in sessions] == ["hello"] * 5


def test_output_that_arrives_before_its_turn_joins_the_batch(commits: Commits, thread: DatabaseThread) -> None:
    session, journal = running_session(), Journal()
    frames = [journal.says("one "), [*journal.says("two "), journal.line("log"), *journal.says("three")]]

    async def arrive() -> AsyncIterator[list[dict[str, Any]]]:
        for frame in frames:
            yield frame
            await asyncio.sleep(0)

    async def write_and_receive() -> tuple[IngestResult, list[dict[str, Any]]]:
        async with aclosing((buffer := LineBuffer(arrive())).batches()) as batches:
            first = await anext(batches)
            written = await JournalWriter(thread)(session.id, MINE, first, None, buffer)
            return written, await anext(batches)

    written, next_batch = asyncio.run(write_and_receive())
    assert written.seq == 2
    assert commits.sizes == [1]
    assert conversation(session)[0][1] == "one two "
    # The stream reads other lines before they are written, so these wait for its next batch.
    assert [line["kind"] for line in next_batch] == ["log", "message.agent"]


def test_other_writers_get_time_between_two_commits(commits: Commits, thread: DatabaseThread) -> None:
    session, journal = running_session(), Journal()

    async def write_serially() -> None:
        write = JournalWriter(thread)
        for _ in range(5):
            await write(session.id, MINE, journal.says(*"word " * 100), None)

    asyncio.run(write_serially())
    is_sqlite = connection.vendor == "sqlite"
    for (began, ended, locked), (next_began, *_) in zip(commits.times, commits.times[1:], strict=False):
        assert 0 < locked <= ended - began
        assert next_began - ended >= (max(COMMIT_INTERVAL, locked) if is_sqlite else COMMIT_INTERVAL)
    assert conversation(session)[0][1] == "word " * 500


def test_stream_without_its_lease_fails_alone(commits: Commits, thread: DatabaseThread) -> None:
    first, lost, last = (running_session() for _ in range(3))
    leases = {first.id: MINE, lost.id: SOMEBODY_ELSE, last.id: MINE}

    async def write_concurrently() -> list[IngestResult | BaseException]:
        write = JournalWriter(thread)
        given = [
            write(session.id, leases[session.id], lines, None) for session, lines in batches_of([first, lost, last])
        ]
        return await asyncio.gather(*given, return_exceptions=True)

    done = asyncio.run(write_concurrently())
    assert [type(one) for one in done] == [IngestResult, LeaseLost, IngestResult]
    assert [names(session) for session in (first, lost, last)] == [
        ["session.message.added"],
        [],
        ["session.message.added"],
    ]


def test_another_process_can_write_while_lines_are_applied(
    commits: Commits, thread: DatabaseThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [running_session() for _ in range(3)]
    tasks, apply, other = [session.task_id for session in sessions], LineApplier.apply, DatabaseThread("other")
    attempts: list[object] = []

    def apply_during_other_write(applier: LineApplier, line: Mapping[str, object]) -> None:
        if not attempts:
            # On SQLite this waits forever if the transaction has already locked the database.
            asyncio.run(other(Task.objects.filter(id__in=tasks).update, title="changed"))
        attempts.append(line["seq"])
        apply(applier, line)

    monkeypatch.setattr(LineApplier, "apply", apply_during_other_write)

    async def write_concurrently() -> list[IngestResult]:
        write = JournalWriter(thread)
        return await asyncio.gather(*(write(session.id, MINE, lines, None) for session, lines in batches_of(sessions)))

    try:
        done = asyncio.run(write_concurrently())
    finally:
        other.close()
    assert [one.seq for one in done] == [5, 5, 5]
    assert [conversation(session)[0][1] for session in sessions] == ["hello"] * 3
    assert [names(session) for session in sessions] == [["session.message.added"]] * 3
    assert set(Task.objects.values_list("title", flat=True)) == {"changed"}
    # SQLite: what was read before the other commit is out of date, so the lines are applied again.
    assert len(attempts) == (6 if connection.vendor == "sqlite" else 3)


def _write_output_twice(count: int, thread: DatabaseThread) -> list[str]:
    """Let agents of ``count`` sessions say *one two* in two transactions; return the statements of the second."""
    sessions = [(running_session(), Journal()) for _ in range(count)]

    def write(batches: Sequence[Batch]) -> list[str]:
        with CaptureQueriesContext(connection) as queries:
            write_batches(batches, LockTimer())
        return [query["sql"] for query in queries]

    async def say(words: str) -> list[str]:
        batches = [Batch(session.id, MINE, journal.says(words), None) for session, journal in sessions]
        return await thread(write, batches)

    asyncio.run(say("one "))
    statements = asyncio.run(say("two"))
    assert [conversation(session)[0][1] for session, _ in sessions] == ["one two"] * count
    return statements


def test_statements_do_not_grow_with_the_sessions(thread: DatabaseThread) -> None:
    assert len(_write_output_twice(FEW + 1, thread)) == len(_write_output_twice(3 * FEW, thread))


def test_output_is_written_without_reading_whole_rows(thread: DatabaseThread) -> None:
    statements = _write_output_twice(2, thread)
    assert not [sql for sql in statements if "metadata" in sql or "error_message" in sql]


@pytest.mark.parametrize("failures", [1, 2, 5])
def test_writer_waits_for_an_unwritable_database(
    failures: int, commits: Commits, thread: DatabaseThread, caplog: pytest.LogCaptureFixture
) -> None:
    sessions = [running_session() for _ in range(3)]
    commits.failures = [OperationalError("database or disk is full")] * failures

    async def write_concurrently() -> list[IngestResult]:
        write = JournalWriter(thread)
        given = [write(session.id, MINE, lines, None) for session, lines in batches_of(sessions)]
        return await asyncio.wait_for(asyncio.gather(*given), PATIENCE)

    done = asyncio.run(write_concurrently())
    assert [one.seq for one in done] == [5, 5, 5]
    assert [conversation(session)[0][1] for session in sessions] == ["hello"] * 3
    assert caplog.text.count("the database does not accept events") == (1 if failures > 1 else 0)
    assert caplog.text.count("accepts events again") == (1 if failures > 1 else 0)
