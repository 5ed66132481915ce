"""A session that floods the writer, or whose lines are expensive, delays only itself."""

from __future__ import annotations

import ast
import asyncio
import logging
import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection

from sessions_app.journal import LineApplier
from sessions_app.kernel import actor_context, database_threads
from sessions_app.kernel.database_threads import DatabaseThread, JobTooLong
from sessions_app.kernel.locking import LockTimer
from sessions_app.metrics.counters import METRICS_BUFFER
from sessions_app.models import Message, SessionEvent, TaskSession, session_transaction
from sessions_app.stream.ingest import writer as writers
from sessions_app.stream.ingest.batches import Batch, Written, write_batches
from sessions_app.stream.ingest.writer import JournalWriter, fair_shares
from tests.supervisor.journals import Journal
from tests.supervisor.rows import MINE, conversation, running_session
from tests.waiting import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("costs", "shares"),
    [
        ([], []),
        ([5], [5]),
        ([500], [100]),
        ([500, 500], [50, 50]),
        ([10, 500], [10, 90]),
        ([500, 10, 500, 20], [35, 10, 35, 20]),
        ([500] * 3, [33, 33, 34]),
    ],
)
def test_budget_is_divided_by_max_min_fairness(costs: list[int], shares: list[int]) -> None:
    assert sorted(fair_shares(costs, 100)) == sorted(shares)
    assert sum(fair_shares(costs, 100)) <= 100


class Transactions:
    """Records for each transaction its sessions, and the bytes of the events that it wrote."""

    def __init__(self) -> None:
        self.sessions: list[set[uuid.UUID]] = []
        self.bytes: list[int] = []

    def __call__(self, batches: Sequence[Batch], timer: LockTimer) -> Written:
        before = SessionEvent.objects.order_by("-id").values_list("id", flat=True).first() or 0
        written = write_batches(batches, timer)
        payloads = SessionEvent.objects.filter(id__gt=before).values_list("payload", flat=True)
        self.sessions.append({batch.session_id for batch in batches})
        self.bytes.append(sum(len(str(payload)) for payload in payloads))
        return written


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> Transactions:
    seen = Transactions()
    monkeypatch.setattr(writers, "write_batches", seen)
    return seen


@pytest.fixture
def thread() -> Iterator[DatabaseThread]:
    made = DatabaseThread("writer")
    yield made
    made.close()


def big_lines(journal: Journal) -> list[dict[str, Any]]:
    return [journal.tool(f"call {number}", raw_input="x" * 200_000) for number in range(40)]


def many_lines(journal: Journal) -> list[dict[str, Any]]:
    return [journal.tool(f"call {number}") for number in range(8_000)]


def expensive_lines(journal: Journal) -> list[dict[str, Any]]:
    """Return short lines, each of which writes a long tool call again."""
    return [journal.tool("call", raw_input="x" * 500_000), *(journal.tool("call") for _ in range(40))]


LARGEST_TRANSACTION = 1_700_000
"""Bytes: the budget of a transaction, and one line."""
FLOODS = {"big lines": big_lines, "many lines": many_lines, "expensive lines": expensive_lines}


@pytest.mark.parametrize("flood", FLOODS)
def test_flood_of_one_session_takes_a_share_of_each_transaction(
    flood: str, transactions: Transactions, thread: DatabaseThread
) -> None:
    flooding, quiet = running_session(), running_session()

    async def write_concurrently() -> None:
        write = JournalWriter(thread)
        lines = FLOODS[flood](Journal())
        flood_task = asyncio.create_task(write(flooding.id, MINE, lines, None))
        await asyncio.sleep(0)
        journal = Journal()
        for _ in range(3):
            await write(quiet.id, MINE, journal.says("a word "), None)
            assert not flood_task.done()
        assert (await flood_task).seq == len(lines)

    asyncio.run(write_concurrently())
    first_of_quiet = next(number for number, sessions in enumerate(transactions.sessions) if quiet.id in sessions)
    assert first_of_quiet <= 1
    # A transaction may exceed its budget by one line, but not by all the flood.
    assert max(transactions.bytes) <= LARGEST_TRANSACTION
    assert conversation(quiet)[0][1] == "a word " * 3
    assert Message.objects.filter(session=flooding, role="tool").count() in (40, 8_000, 1)


def test_rest_of_a_batch_is_written_in_order_and_once(transactions: Transactions, thread: DatabaseThread) -> None:
    session, journal = running_session(), Journal()
    lines = [
        line
        for number in range(12)
        for line in (*journal.says(f"{number} "), journal.tool(f"call {number}", raw_input="x" * 300_000))
    ]

    async def write_all() -> None:
        assert (await JournalWriter(thread)(session.id, MINE, lines, None)).seq == 24

    asyncio.run(write_all())
    assert len(transactions.sessions) >= 4
    messages = [(role, text) for role, text, *_ in conversation(session)]
    assert messages == [pair for number in range(12) for pair in (("agent", f"{number} "), ("tool", ""))]
    assert list(SessionEvent.objects.filter(session=session).order_by("seq").values_list("seq", flat=True)) == list(
        range(1, 1 + SessionEvent.objects.filter(session=session).count())
    )


def test_session_whose_line_exceeded_its_share_waits_for_the_others(
    transactions: Transactions, thread: DatabaseThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy, quiet = running_session(), running_session()
    monkeypatch.setattr(writers, "_pause_after", lambda locked: 1.0)  # so that the wait is longer than any hiccup

    async def write_concurrently() -> None:
        write, journals = JournalWriter(thread), (Journal(), Journal())

        async def write_greedily() -> None:
            for number in range(2):
                await write(greedy.id, MINE, [journals[0].tool(f"call {number}", raw_input="x" * 2_000_000)], None)

        async def write_quietly() -> None:
            for _ in range(3):
                await write(quiet.id, MINE, journals[1].says("a word "), None)

        await asyncio.gather(write_greedily(), write_quietly())

    asyncio.run(write_concurrently())
    assert transactions.sessions[:2] == [{greedy.id, quiet.id}, {quiet.id}]


def _slow_statement() -> None:
    """Execute one statement that takes longer than any test."""
    forever = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n WHERE x < 0"
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(60)" if connection.vendor == "postgresql" else forever)


def test_statement_is_cancelled_after_the_limit_of_its_thread() -> None:
    thread = DatabaseThread("limited", limit=0.3)

    async def run() -> int:
        with pytest.raises(OperationalError):
            await thread(_slow_statement)
        return await thread(TaskSession.objects.count)

    try:
        assert asyncio.run(run()) == 0
    finally:
        thread.close()


def test_many_quick_statements_end_at_the_limit_of_their_thread_too() -> None:
    session, thread, counted = running_session(), DatabaseThread("limited", limit=0.3), [0]

    def count_forever() -> None:
        with session_transaction(session.id) as transaction:
            while True:
                transaction.session.runs.count()
                counted[0] += 1

    async def run() -> int:
        with pytest.raises(JobTooLong):
            await thread(count_forever)
        return await thread(TaskSession.objects.count)

    try:
        assert asyncio.run(run()) == 1
        assert counted[0]
    finally:
        thread.close()


def test_every_database_thread_has_a_limit() -> None:
    limited = {}
    for path in (Path(__file__).parents[2] / "sessions_app").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "DatabaseThread":
                limited[ast.literal_eval(node.args[0])] = any(keyword.arg == "limit" for keyword in node.keywords)
    assert limited == dict.fromkeys(("ingest", "orders", "export", "workflows", "hub", "search"), True)


def test_session_whose_lines_take_too_long_is_delayed_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slow, quick = running_session(), running_session()
    thread, apply, failures = DatabaseThread("writer"), LineApplier.apply, [1, 1, 1]

    def apply_slowly(applier: LineApplier, line: Mapping[str, Any]) -> None:
        if applier.transaction.session.id == slow.id and failures:
            failures.pop()
            raise JobTooLong
        apply(applier, line)

    monkeypatch.setattr(LineApplier, "apply", apply_slowly)
    counted = METRICS_BUFFER._counts["kandev_ingest_delayed_total", ()]

    async def write_concurrently() -> list[str]:
        write, order = JournalWriter(thread), list[str]()

        async def write_for(session: TaskSession, name: str) -> None:
            await write(session.id, MINE, Journal().says("hello"), None)
            order.append(name)

        await asyncio.gather(write_for(slow, "slow"), write_for(quick, "quick"))
        return order

    try:
        assert asyncio.run(write_concurrently()) == ["quick", "slow"]
    finally:
        thread.close()
    assert [conversation(session)[0][1] for session in (slow, quick)] == ["hello"] * 2
    assert f"session {slow.id}: its lines cannot be written in time" in caplog.text
    assert f"session {quick.id}" not in caplog.text
    assert METRICS_BUFFER._counts["kandev_ingest_delayed_total", ()] > counted


def _work(seconds: float) -> None:
    """Take as much processor time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@pytest.mark.embedded
def test_call_that_waits_for_the_lock_of_others_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_threads, "DELAY_FACTOR", 1000.0)
    session = running_session()
    holder, thread = DatabaseThread("holder"), DatabaseThread("orders")
    is_locked = threading.Event()

    def hold() -> None:
        with session_transaction(session.id):
            is_locked.set()
            time.sleep(5 * database_threads.FREE_SECONDS)

    def write() -> None:
        with session_transaction(session.id):
            pass

    async def run() -> None:
        with actor_context.acting_as(session_id="other"):
            holding = asyncio.create_task(holder(hold))
            await asyncio.to_thread(is_locked.wait)
            await thread(write)
            async with asyncio.timeout(PATIENCE):
                await thread(int)
        await holding

    try:
        asyncio.run(run())
    finally:
        holder.close()
        thread.close()


def test_long_call_delays_only_later_calls_of_its_session(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database_threads, "FREE_SECONDS", 0.05)
    monkeypatch.setattr(database_threads, "SLOW_SECONDS", 0.05)
    monkeypatch.setattr(database_threads, "DELAY_FACTOR", 20.0)
    thread = DatabaseThread("orders")

    async def call_as(session_id: str, function: Any, *given: Any) -> float:
        with actor_context.acting_as(session_id=session_id, cause="prompt"):
            await thread(function, *given)
        return time.monotonic()

    async def run() -> None:
        began = time.monotonic()
        await call_as("greedy", _work, 0.1)
        greedy, other = await asyncio.gather(call_as("greedy", int), call_as("other", int))
        await thread(int)  # about no session: never delayed
        assert other < greedy
        assert greedy - began > 1

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    thread.close()
    assert re.search(r"_work took [\d.]+ s on the thread orders; session: greedy, cause: prompt", caplog.text)
