"""A session's socket: hello, the backlog, then new events, without repetitions or gaps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sessions_app.kernel.database_threads import run_in_database
from sessions_app.models import SessionEvent
from sessions_app.sessions.services.status import session_status
from sessions_app.stream.live.hub import get_hub, load_lines_after
from tests.api.world import World, client_of, message
from tests.stream.live.sockets import Headers, connected, of_page, path_of, say, wait_until


@pytest.fixture
def member(world: World) -> Headers:
    return of_page(world.member)


async def test_hello_with_the_status_comes_first(world: World, member: Headers) -> None:
    await say(world.session, 3)
    async with connected(path_of(world.session), member) as socket:
        hello = await socket.frame()
    await run_in_database(world.session.refresh_from_db)
    assert hello == {
        "type": "hello",
        "session_id": str(world.session.id),
        "task_id": str(world.task.id),
        "epoch": world.session.epoch,
        "last_seq": 3,
        "status": await run_in_database(session_status, world.session),
    }


async def test_events_equal_those_of_the_api(world: World, member: Headers) -> None:
    async with connected(path_of(world.session), member) as socket:
        await socket.frame()
        await say(world.session, 2)
        seen = [await socket.frame(), await socket.frame()]
    assert seen == await run_in_database(lambda: client_of(world.member).get(world.url("events/")).json()["results"])


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("", 1),
        ("?after=", 1),
        ("?after=0", 1),
        ("?after=3", 4),
        ("?after=5", 6),
        ("?after=3&epoch={epoch}", 4),
        ("?after=3&epoch=", 4),
    ],
)
async def test_backlog_comes_before_new_events(world: World, member: Headers, query: str, first: int) -> None:
    await say(world.session, 5)
    async with connected(path_of(world.session, query.format(epoch=world.session.epoch)), member) as socket:
        assert (await socket.frame())["type"] == "hello"
        await say(world.session, 2)
        assert await socket.seqs(8 - first) == list(range(first, 8))
        assert await socket.is_silent()


async def test_long_log_arrives_complete_and_in_order(world: World, member: Headers) -> None:
    await say(world.session, 1111)
    async with connected(path_of(world.session), member) as socket:
        await socket.frame()
        assert await socket.seqs(1111) == list(range(1, 1112))


async def test_burst_arrives_complete_and_in_order(world: World, member: Headers) -> None:
    async with connected(path_of(world.session), member) as socket:
        await socket.frame()
        await wait_until(lambda: all(one.is_live for one in get_hub().subscribers), "it is live")
        await say(world.session, 1111)
        assert await socket.seqs(1111) == list(range(1, 1112))


async def test_events_sent_to_others_during_catch_up_are_not_missed(
    world: World, member: Headers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub sends newer events to live sockets before a socket that has just read its backlog becomes live."""

    async def passed_by() -> None:
        (followed,) = get_hub()._cursors
        await wait_until(lambda: get_hub()._cursors[followed] == 5, "the hub has passed by")

    reads: list[int] = []

    async def run(function: Callable[..., Any], *args: Any) -> Any:
        found = await run_in_database(function, *args)
        if function is load_lines_after:
            reads.append(len(found[0]))
            if len(reads) == 1:
                await say(world.session, 3)
                await passed_by()
        return found

    monkeypatch.setattr("sessions_app.stream.live.hub.run_in_database", run)
    await say(world.session, 2)
    async with connected(path_of(world.session), member) as socket:
        await socket.frame()
        assert await socket.seqs(5) == [1, 2, 3, 4, 5]
        assert reads == [2, 3]
        await say(world.session, 1)
        assert await socket.seqs(1) == [6]


async def test_client_that_connects_during_a_burst_gets_every_event_once(world: World, member: Headers) -> None:
    async def talk() -> None:
        for _ in range(60):
            await say(world.session, 10)

    async def listen(after: int) -> list[int]:
        async with connected(path_of(world.session, f"?after={after}"), member) as socket:
            await socket.frame()
            return await socket.seqs(600 - after)

    await say(world.session, 1)
    talking = asyncio.create_task(talk())
    received = await asyncio.gather(*(listen(number % 2) for number in range(12)))
    await talking
    assert received == [list(range(number % 2 + 1, 601)) for number in range(12)]


async def forget(world: World, up_to: int) -> None:
    await run_in_database(lambda: SessionEvent.objects.filter(session=world.session, seq__lte=up_to).delete())


@pytest.mark.parametrize("query", ["?after=6", "?after=99", "?after=-1", "?after=two", "?after=5&epoch=old"])
async def test_unknown_cursor_is_answered_with_a_snapshot(world: World, member: Headers, query: str) -> None:
    await say(world.session, 5)
    async with connected(path_of(world.session, query), member) as socket:
        hello, truncated = await socket.frame(), await socket.frame()
        await say(world.session)
        following = await socket.frame()
    assert (hello["type"], truncated["type"]) == ("hello", "truncated")
    assert truncated["snapshot"]["last_seq"] == 5
    assert (following["type"], following["seq"]) == ("event", 6)


@pytest.mark.parametrize(("after", "type_"), [(0, "truncated"), (2, "truncated"), (3, "event"), (4, "event")])
async def test_cursor_before_the_kept_events_is_answered_with_a_snapshot(
    world: World, member: Headers, after: int, type_: str
) -> None:
    await say(world.session, 5)
    await forget(world, 3)
    async with connected(path_of(world.session, f"?after={after}"), member) as socket:
        await socket.frame()
        assert (await socket.frame())["type"] == type_


async def test_log_without_kept_events_is_answered_with_a_snapshot(world: World, member: Headers) -> None:
    await say(world.session, 5)
    await forget(world, 5)
    async with connected(path_of(world.session, "?after=2"), member) as socket:
        await socket.frame()
        assert (await socket.frame())["type"] == "truncated"


async def test_snapshot_contains_the_conversation_of_the_api(world: World, member: Headers) -> None:
    await say(world.session, 2)
    await run_in_database(message, world.session, 1, "one ", "two ", "three")
    await run_in_database(message, world.session, 2)
    async with connected(path_of(world.session, "?after=7"), member) as socket:
        hello, snapshot = await socket.frame(), (await socket.frame())["snapshot"]
    listed = await run_in_database(lambda: client_of(world.member).get(world.url("messages/")).json()["results"])
    assert snapshot == {
        "messages": listed,
        "has_older": False,
        "status": hello["status"],
        "last_seq": 2,
        "epoch": world.session.epoch,
    }
    assert listed[0]["text"] == "one two three"


async def test_snapshot_of_a_long_conversation_is_its_newest_part(world: World, member: Headers) -> None:
    def talk() -> None:
        for seq in range(1, 252):
            message(world.session, seq, f"{seq}")

    await run_in_database(talk)
    async with connected(path_of(world.session, "?after=7"), member) as socket:
        await socket.frame()
        snapshot = (await socket.frame())["snapshot"]
    assert [one["seq"] for one in snapshot["messages"]] == list(range(52, 252))
    assert snapshot["has_older"]
