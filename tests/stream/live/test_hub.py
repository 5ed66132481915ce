"""The reader behind all sockets: its cost, its failures and its end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from sessions_app.kernel import wakeups
from sessions_app.kernel.database_threads import run_in_database
from sessions_app.stream.live import hub as hubs
from sessions_app.stream.live.authentication import CloseCode
from tests.api.world import World
from tests.stream.live.sockets import Headers, Socket, connected, of_page, path_of, say, wait_until


@pytest.fixture
def member(world: World) -> Headers:
    return of_page(world.member)


async def live_sockets(stack: AsyncExitStack, world: World, member: Headers, count: int) -> list[Socket]:
    """Return ``count`` open, live sockets of one session."""
    sockets = [await stack.enter_async_context(connected(path_of(world.session), member)) for _ in range(count)]
    for socket in sockets:
        await socket.frame()
    await wait_until(lambda: all(one.is_live for one in hubs.get_hub().subscribers), "all are live")
    return sockets


async def statements(work: Any) -> list[str]:
    """Return the SQL statements that the reader sent during ``work``."""
    database = hubs.get_hub().database
    assert database is not None

    def watch() -> int:
        connection.force_debug_cursor = True
        return len(connection.queries_log)

    before = await database(watch)
    await work
    return [query["sql"] for query in (await database(lambda: list(connection.queries_log)))[before:]]


@pytest.mark.parametrize("count", [1, 30])
async def test_wakeup_costs_the_same_for_any_number_of_sockets(
    world: World, member: Headers, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "CHECK_EVERY", 3600)
    async with AsyncExitStack() as stack:
        sockets = await live_sockets(stack, world, member, count)

        async def write_and_receive() -> None:
            await say(world.session, 5)
            for socket in sockets:
                assert await socket.seqs(5) == [1, 2, 3, 4, 5]

        queries = await statements(write_and_receive())
    looks = [sql for sql in queries if not asks_for_version(sql)]
    assert 1 <= len(looks) <= 3  # a periodic check may run in between


def asks_for_version(sql: str) -> bool:
    return "PRAGMA data_version" in sql or "pg_current_snapshot" in sql


async def test_idle_database_is_asked_only_for_its_version(
    world: World, member: Headers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "CHECK_EVERY", 3600)
    async with AsyncExitStack() as stack:
        (socket,) = await live_sockets(stack, world, member, 1)
        queries = await statements(socket.is_silent())
    assert all(map(asks_for_version, queries))


async def test_event_without_a_wakeup_arrives_by_polling(
    world: World, member: Headers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "CHECK_EVERY", 3600)
    async with AsyncExitStack() as stack:
        (socket,) = await live_sockets(stack, world, member, 1)
        monkeypatch.setattr(wakeups, "notify", lambda: None)
        await say(world.session, 1)
        assert (await socket.frame())["seq"] == 1


async def test_rolled_back_event_is_never_sent(world: World, member: Headers) -> None:
    def take_back() -> None:
        with transaction.atomic():
            world.session.events.create(seq=1, name="session.state_changed", at=world.session.created_at)
            transaction.set_rollback(True)

    async with AsyncExitStack() as stack:
        (socket,) = await live_sockets(stack, world, member, 1)
        await run_in_database(take_back)
        assert await socket.is_silent()


async def test_brief_database_failure_loses_no_events(
    world: World, member: Headers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([OperationalError("gone"), OperationalError("still gone")])

    load_changes = hubs.load_changes

    def load_or_fail(*args: Any) -> hubs.LogChanges:
        for error in failures:
            raise error
        return load_changes(*args)

    monkeypatch.setattr(hubs, "RETRY", 0.01)
    async with AsyncExitStack() as stack:
        (socket,) = await live_sockets(stack, world, member, 1)
        monkeypatch.setattr(hubs, "load_changes", load_or_fail)
        await say(world.session, 3)
        assert await socket.seqs(3) == [1, 2, 3]
    assert caplog.text.count("could not be sent to sockets") == 2


async def test_broken_connection_is_dropped_and_others_are_served(
    world: World, member: Headers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        await live_sockets(stack, world, member, 1)
        (broken,) = hubs.get_hub().subscribers

        async def transmit(batch: Sequence[hubs.LogLine]) -> None:
            raise ConnectionError

        monkeypatch.setattr(broken, "transmit", transmit)
        _, other = await live_sockets(stack, world, member, 2)
        await say(world.session, 1)
        assert await other.seqs(1) == [1]
        assert broken not in hubs.get_hub().subscribers
    assert "could not be sent to" in caplog.text


async def test_reader_thread_ends_with_its_last_socket(world: World, member: Headers) -> None:
    before = {path.name for path in wakeups.socket_directory().iterdir()}
    async with AsyncExitStack() as stack:
        await live_sockets(stack, world, member, 3)
        assert len({path.name for path in wakeups.socket_directory().iterdir()} - before) == 1
    assert not hubs.get_hub().subscribers
    await wait_until(
        lambda: not any(one.name.startswith("hub") for one in threading.enumerate()), "its thread has ended"
    )
    assert {path.name for path in wakeups.socket_directory().iterdir()} <= before
    async with AsyncExitStack() as stack:
        (socket,) = await live_sockets(stack, world, member, 1)
        await say(world.session, 1)
        assert await socket.seqs(1) == [1]


async def test_everybody_is_sent_elsewhere_although_one_cannot_be_told(
    world: World, member: Headers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        await live_sockets(stack, world, member, 1)
        (broken,) = hubs.get_hub().subscribers

        async def close(code: CloseCode) -> None:
            raise ConnectionError

        monkeypatch.setattr(broken, "close", close)
        _, other = await live_sockets(stack, world, member, 2)
        await hubs.get_hub().disconnect_all(CloseCode.RESTARTING)
        assert await other.close_code() == 1012
    assert "could not be disconnected" in caplog.text


async def test_who_joins_while_the_process_ends_is_sent_elsewhere_too(world: World, member: Headers) -> None:
    await hubs.get_hub().disconnect_all(CloseCode.RESTARTING)
    async with connected(path_of(world.session), member) as late:
        assert await late.close_code() == 1012
    hubs._hubs.clear()  # the hub of another process serves again
    async with AsyncExitStack() as stack:
        (socket,) = await live_sockets(stack, world, member, 1)
        await say(world.session, 1)
        assert await socket.seqs(1) == [1]
