"""A task's socket: the events of all its sessions, including sessions created later."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sessions_app.board.services.tasks import create_session, create_task
from sessions_app.kernel.database_threads import run_in_database
from sessions_app.models import TaskSession
from sessions_app.stream import consumers
from sessions_app.stream.consumers import ConnectionGreeting, TaskConsumer
from sessions_app.stream.live.authentication import Principal
from sessions_app.stream.live.hub import Hub, LogChanges, get_hub
from tests.api.world import World, client_of
from tests.stream.live.sockets import append, connected, of_page, path_of, say, wait_until
from tests.waiting import eventually


def another(world: World) -> TaskSession:
    return create_session(world.member, world.task, world.profile, world.executor)


async def test_hello_contains_task_sessions_and_statuses(world: World) -> None:
    headers, second = await run_in_database(of_page, world.member), await run_in_database(another, world)
    await say(world.session, 2)
    async with connected(f"/ws/tasks/{world.task.id}/", headers) as socket:
        hello = await socket.frame()
        assert await socket.is_silent()

    def counters() -> tuple[object, ...]:
        client = client_of(world.member)
        address = f"/api/v1/tasks/{world.task.id}/"
        return client.get(address).json(), client.get(address + "sessions/").json()["results"]

    assert (hello["task"], hello["sessions"]) == await run_in_database(counters)
    assert {key: status["last_seq"] for key, status in hello["statuses"].items()} == {
        str(world.session.id): 2,
        str(second.id): 0,
    }


async def test_hello_describes_only_the_newest_sessions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "MAX_GREETED_SESSIONS", 2)
    headers = await run_in_database(of_page, world.member)
    newest = [await run_in_database(another, world) for _ in range(2)]
    await say(world.session, 3)
    async with connected(f"/ws/tasks/{world.task.id}/", headers) as socket:
        hello = await socket.frame()
        await say(world.session, 1)
        event = await socket.frame()
    assert hello["session_count"] == 3
    assert [session["id"] for session in hello["sessions"]] == [str(session.id) for session in reversed(newest)]
    assert set(hello["statuses"]) == {str(session.id) for session in newest}
    assert (event["session_id"], event["seq"]) == (str(world.session.id), 4), "the log of an older one is followed"


async def test_hello_query_count_does_not_grow_with_sessions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "MAX_GREETED_SESSIONS", 2)
    consumer, principal = TaskConsumer(), Principal(world.member.id)

    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            consumer.build_greeting(principal, world.task.id, {})
        return len(seen)

    def measure() -> tuple[int, int]:
        another(world)
        with_two = queries()
        for _ in range(5):
            another(world)
        return with_two, queries()

    with_two, with_seven = await run_in_database(measure)
    assert with_two == with_seven


async def test_events_of_every_session_of_the_task_arrive(world: World) -> None:
    headers, second = await run_in_database(of_page, world.member), await run_in_database(another, world)
    values = {"title": "Another", "team": world.team, "repository": world.repository}
    elsewhere = await run_in_database(create_task, world.member, values)
    foreign = await run_in_database(create_session, world.member, elsewhere, world.profile, world.executor)
    async with connected(f"/ws/tasks/{world.task.id}/", headers) as socket:
        await socket.frame()
        for session in (foreign, world.session, second):
            await say(session, 2)
        seen = [await socket.frame() for _ in range(4)]
        assert await socket.is_silent()
    assert sorted((frame["session_id"], frame["seq"]) for frame in seen) == sorted(
        (str(session.id), seq) for session in (world.session, second) for seq in (1, 2)
    )


async def test_session_created_later_is_followed(world: World) -> None:
    headers = await run_in_database(of_page, world.member)
    async with connected(f"/ws/tasks/{world.task.id}/", headers) as socket:
        await socket.frame()
        born = await run_in_database(another, world)
        await say(born, 3)
        seen = [await socket.frame() for _ in range(3)]
    assert [(frame["session_id"], frame["seq"]) for frame in seen] == [(str(born.id), seq) for seq in (1, 2, 3)]


async def test_session_and_task_sockets_get_the_same_events(world: World) -> None:
    headers = await run_in_database(of_page, world.member)
    await say(world.session, 2)
    async with (
        connected(f"/ws/tasks/{world.task.id}/", headers) as of_task,
        connected(path_of(world.session), headers) as of_session,
    ):
        await of_task.frame()
        await of_session.frame()
        await say(world.session, 2)
        assert await of_task.seqs(2) == [3, 4]
        assert await of_session.seqs(4) == [1, 2, 3, 4]


def sent_of(here: Hub, session: TaskSession) -> list[int]:
    """Return the hub's cursor of a session in a list; empty if the hub does not follow it."""
    return [seq for log, seq in here._cursors.copy().items() if log.session_id == session.id]


async def test_session_created_during_the_greeting_is_followed_from_its_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another socket follows the task already, so the session is not new to the hub when this one joins."""
    headers, here, born = await run_in_database(of_page, world.member), get_hub(), []
    original = TaskConsumer.build_greeting

    def build_greeting(*args: Any) -> ConnectionGreeting:
        result = original(*args)
        born.append(another(world))
        append(born[0].id, 2)
        eventually(lambda: sent_of(here, born[0]) == [2], describe="the other socket has its events")
        return result

    path = f"/ws/tasks/{world.task.id}/"
    async with connected(path, headers) as first:
        await first.frame()
        monkeypatch.setattr(TaskConsumer, "build_greeting", build_greeting)
        async with connected(path, headers) as second:
            assert (await second.frame())["type"] == "hello"
            assert await second.seqs(2) == [1, 2]
            await say(born[0])
            assert await second.seqs(1) == [3]
        assert await first.seqs(3) == [1, 2, 3]


async def test_session_already_followed_elsewhere_is_followed_from_its_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = await run_in_database(of_page, world.member)
    async with connected(f"/ws/tasks/{world.task.id}/", headers) as of_task:
        await of_task.frame()
        await wait_until(lambda: all(one.is_live for one in get_hub().subscribers), "it is live")
        with monkeypatch.context() as blind:
            blind.setattr("sessions_app.stream.live.hub.load_changes", lambda *args: LogChanges("1"))
            born = await run_in_database(another, world)
            await say(born, 2)
            async with connected(path_of(born), headers) as of_session:
                await of_session.frame()
                assert await of_session.seqs(2) == [1, 2]
                blind.undo()
                assert await of_task.seqs(2) == [1, 2]
                await say(born)
                assert await of_task.seqs(1) == [3]
                assert await of_session.seqs(1) == [3]
