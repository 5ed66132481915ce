"""Server-Sent Events: the same lines and access rules as sockets; a stream ends when access ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kandev.asgi import application
from sessions_app.kernel.database_threads import run_in_database
from sessions_app.models import SessionEvent
from sessions_app.stream.api import event_stream
from sessions_app.stream.live import hub as hubs
from sessions_app.stream.live.authentication import Principal, Subscription
from sessions_app.stream.live.stream_start import start_stream_at
from tests.api.world import World, client_of
from tests.stream.live.sockets import Headers, Wire, connected, of_page, of_program, path_of, say, wait_until
from tests.waiting import PATIENCE


class Listener:
    """A client with one open response."""

    def __init__(self, path: str, headers: Headers):
        address, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": "GET",
            "path": address,
            "raw_path": address.encode(),
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "server": ("localhost", 80),
            "http_version": "1.1",
        }
        self.wire = Wire(application, scope)
        self.status = 0
        self.headers: dict[str, str] = {}
        self._text = ""

    async def open(self) -> None:
        """Send the request and read the response head."""
        await self.wire.send_input({"type": "http.request"})
        head = await self.wire.receive_output(PATIENCE)
        self.status = head["status"]
        self.headers = {name.decode().lower(): value.decode() for name, value in head["headers"]}

    async def block(self) -> str:
        """Return the next block of the stream; raise EOFError at its end."""
        while "\n\n" not in self._text:
            message = await self.wire.receive_output(PATIENCE)
            self._text += message.get("body", b"").decode()
            if not message.get("more_body"):
                raise EOFError(self._text)
        found, _, self._text = self._text.partition("\n\n")
        return found

    async def event(self) -> tuple[str, dict[str, Any]]:
        """Return the id and the data of the next event."""
        while not (found := await self.block()).startswith("id: "):
            pass
        name, _, data = found.partition("\ndata: ")
        return name.removeprefix("id: "), json.loads(data)

    async def ids(self, count: int) -> list[int]:
        """Return the ids of the next ``count`` events."""
        return [int((await self.event())[0]) for _ in range(count)]

    async def rest(self) -> list[str]:
        """Return all blocks until the end."""
        found = []
        try:
            while True:
                found.append(await self.block())
        except EOFError:
            return found


@asynccontextmanager
async def listening(world: World, headers: Headers, query: str = "") -> AsyncIterator[Listener]:
    listener = Listener(world.url("events/stream") + query, headers)
    await listener.open()
    try:
        yield listener
    finally:
        await listener.wire.send_input({"type": "http.disconnect"})
        await listener.wire.wait(PATIENCE)


@pytest.fixture
def member(world: World) -> Headers:
    return of_program(world.member)


async def test_events_carry_their_seq_as_id(world: World, member: Headers) -> None:
    await say(world.session, 2)
    async with listening(world, member) as listener:
        assert listener.status == 200
        assert listener.headers["content-type"] == "text/event-stream"
        assert listener.headers["cache-control"] == "no-store"
        assert (await listener.block()).startswith("retry: ")
        seen = [await listener.event(), await listener.event()]
        await say(world.session, 1)
        assert await listener.ids(1) == [3]
    listed = await run_in_database(lambda: client_of(world.member).get(world.url("events/")).json()["results"])
    assert seen == [(str(line["seq"]), line) for line in listed[:2]]


async def test_clients_reconnect_at_random_times(
    world: World, member: Headers, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    for number in (1234, 2345):
        monkeypatch.setattr(event_stream, "random", SimpleNamespace(randint=lambda *_, number=number: number))
        async with listening(world, member) as listener:
            drawn.append(await listener.block())
    assert drawn == ["retry: 1234", "retry: 2345"]


@pytest.mark.parametrize(
    ("query", "last", "first"),
    [
        ("", None, 1),
        ("?after=2", None, 3),
        ("?after=5", None, 6),
        ("", "4", 5),
        ("?after=1", "4", 5),
        ("?after=2", "", 3),
    ],
)
async def test_stream_starts_after_the_clients_cursor(
    world: World, member: Headers, query: str, last: str | None, first: int
) -> None:
    await say(world.session, 5)
    headers = member if last is None else {**member, "Last-Event-ID": last}
    async with listening(world, headers, query) as listener:
        await say(world.session, 2)
        assert await listener.ids(8 - first) == list(range(first, 8))


@pytest.mark.parametrize("after", [0, 9])
async def test_unavailable_cursor_is_answered_with_a_snapshot(world: World, member: Headers, after: int) -> None:
    await say(world.session, 5)
    await run_in_database(lambda: SessionEvent.objects.filter(session=world.session, seq__lt=3).delete())
    async with listening(world, member, f"?after={after}") as listener:
        name, payload = await listener.event()
        assert (name, payload["type"], payload["snapshot"]["last_seq"]) == ("5", "truncated", 5)
        await say(world.session, 1)
        assert await listener.ids(1) == [6]


@pytest.mark.parametrize(
    ("query", "last"), [("?after=two", None), ("?after=-1", None), (f"?after={2**63}", None), ("", "1.5")]
)
async def test_invalid_cursor_is_rejected(world: World, member: Headers, query: str, last: str | None) -> None:
    headers = member if last is None else {**member, "Last-Event-ID": last}
    async with listening(world, headers, query) as listener:
        assert listener.status == 400
        assert json.loads((await listener.wire.receive_output(PATIENCE))["body"])["code"] == "validation_error"


@pytest.mark.parametrize(
    ("caller", "accept"), [(of_page, "text/event-stream"), (of_program, "*/*"), (of_program, "application/json")]
)
async def test_browsers_and_programs_can_connect(world: World, caller: Any, accept: str) -> None:
    headers = {**await run_in_database(caller, world.member), "Accept": accept}
    async with listening(world, headers) as listener:
        assert (listener.status, listener.headers["content-type"]) == (200, "text/event-stream")


async def test_strangers_get_404_and_anonymous_clients_401(world: World) -> None:
    for headers, status, code in (
        (await run_in_database(of_program, world.stranger), 404, "not_found"),
        ({"Host": "localhost", "Accept": "text/event-stream"}, 401, "not_authenticated"),
    ):
        async with listening(world, headers) as listener:
            assert listener.status == status
            assert json.loads((await listener.wire.receive_output(PATIENCE))["body"])["code"] == code


async def test_quiet_stream_sends_heartbeats(world: World, member: Headers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "HEARTBEAT", 0.02)
    async with listening(world, member) as listener:
        await listener.block()
        assert [await listener.block(), await listener.block()] == [": heartbeat"] * 2


async def test_stream_ends_when_the_member_leaves_the_team(
    world: World, member: Headers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "CHECK_EVERY", 0)
    async with listening(world, member) as listener:
        await listener.block()
        await run_in_database(world.member.groups.clear)
        assert await listener.rest() == []
        assert not hubs.get_hub().subscribers


async def test_closed_stream_is_unsubscribed(world: World, member: Headers) -> None:
    async with listening(world, member) as listener:
        await listener.block()
        await wait_until(lambda: hubs.get_hub().subscribers, "it is followed")
    assert not hubs.get_hub().subscribers


async def test_streams_and_sockets_share_one_limit(
    world: World, member: Headers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "MAX_SUBSCRIPTIONS", 1)
    async with connected(path_of(world.session), member) as socket:
        await socket.frame()
        async with listening(world, member) as listener:
            assert listener.status == 429
            assert json.loads((await listener.wire.receive_output(PATIENCE))["body"])["code"] == "throttled"
    async with listening(world, member) as listener:
        assert listener.status == 200


async def test_long_stream_ends_at_its_size_limit_and_can_continue(
    world: World, member: Headers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "MAX_BYTES", 100_000)
    await say(world.session, 1000)
    seen: list[int] = []
    while len(seen) < 1000:
        async with listening(world, {**member, "Last-Event-ID": str(len(seen))}) as listener:
            blocks = (
                await listener.rest() if len(seen) < 600 else [await listener.block() for _ in range(1001 - len(seen))]
            )
            seen += [int(block.partition("\n")[0].removeprefix("id: ")) for block in blocks if block.startswith("id: ")]
    assert seen == list(range(1, 1001))


async def test_backpressure_of_the_server_limits_the_stream(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that the server does not take stay within the window."""
    monkeypatch.setattr(hubs, "MAX_UNACKED_EVENTS", 50)
    monkeypatch.setattr(hubs, "ACK_TIMEOUT", 0.1)
    await say(world.session, 900)

    await run_in_database(world.session.refresh_from_db)
    opened = await run_in_database(start_stream_at, world.session, 0)
    place = Subscription(Principal(world.member.pk), world.task.id, world.session.id)
    one = event_stream.EventStream(place, opened)
    hubs.get_hub().join(one, {opened.log: opened.head})
    hubs.get_hub().start_feeding(one)
    await wait_until(lambda: one.is_closed, "it was cut")
    hubs.get_hub().leave(one)
    assert one.sent[opened.log] < 900
