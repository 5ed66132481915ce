"""A web process that is asked to end answers what it has begun, and its other clients continue elsewhere."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from kandev.graceful_end import END_WITHIN
from tests.drills import kandev_processes
from tests.drills.deployment import Deployment, Session
from tests.preloaded import PreloadedProcess
from tests.stream.live.talker import Talker
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.any_database


class Webs:
    """Two web processes; the first one is asked to end."""

    def __init__(self, deployment: Deployment):
        self.deployment = deployment
        self.url, self.ending = kandev_processes.web(deployment)
        self.other_url, self.other = kandev_processes.web(deployment)

    def start_session(self) -> Session:
        """Wait until both answer, and return a session that never starts an agent."""
        for url in (self.url, self.other_url):
            self.deployment.url = url
            eventually(lambda: self.deployment.api("GET", "tasks/") is not None, timeout=60, describe="the web answers")
        return self.deployment.start_session("Nothing", desired_state="stopped")

    def ask_to_end(self) -> None:
        """Ask the first one to end, as a service manager does."""
        self.ending.send_signal(signal.SIGTERM)


@pytest.fixture
def webs(deployment: Deployment) -> Iterator[Webs]:
    made = Webs(deployment)
    yield made
    for process in (made.ending, made.other):
        kandev_processes.end(process)


@asynccontextmanager
async def following(session: Session, url: str, after: int) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Follow a session as a page does."""
    headers = {"Authorization": f"Token {session.deployment.seeded['token']}"}
    address = f"{url}/ws/sessions/{session.id}/?after={after}"
    async with aiohttp.ClientSession() as http, http.ws_connect(address, headers=headers) as socket:
        yield socket


async def read_events(socket: aiohttp.ClientWebSocketResponse, seen: list[int], until: int) -> None:
    """Collect the seqs of events up to ``until``, or until the socket closes."""
    while (not seen or seen[-1] < until) and (message := await socket.receive(PATIENCE)).type == aiohttp.WSMsgType.TEXT:
        frame = json.loads(message.data)
        if frame["type"] == "event":
            seen.append(frame["seq"])
            await socket.send_json({"type": "ack", "seq": frame["seq"]})


async def has_ended(process: PreloadedProcess) -> int:
    """Return the exit status of a process that ends in time."""
    return await asyncio.to_thread(process.wait, END_WITHIN + PATIENCE)


async def test_socket_is_closed_with_a_code_and_no_event_is_lost(webs: Webs) -> None:
    session = await asyncio.to_thread(webs.start_session)
    talker = await asyncio.to_thread(Talker, webs.deployment)
    try:
        talker.begin("say", session.id, 2000, 20)
        seen: list[int] = []
        async with following(session, webs.url, 0) as socket:
            await read_events(socket, seen, 100)
            webs.ask_to_end()
            await read_events(socket, seen, 2000)
            assert seen[-1] == 2000 or socket.close_code == 1012
        async with following(session, webs.other_url, seen[-1]) as socket:
            await read_events(socket, seen, 2000)
        assert seen == list(range(1, 2001))
        assert await has_ended(webs.ending) == 0
    finally:
        await asyncio.to_thread(talker.close)


async def test_quiet_socket_and_stream_end_at_once(webs: Webs) -> None:
    session = await asyncio.to_thread(webs.start_session)
    headers = {"Authorization": f"Token {session.deployment.seeded['token']}"}
    url = f"{webs.url}/api/v1/{session.path}/events/stream"
    async with (
        following(session, webs.url, 0) as socket,
        aiohttp.ClientSession() as http,
        http.get(url, headers=headers) as stream,
    ):
        assert (await socket.receive_json(timeout=PATIENCE))["type"] == "hello"
        assert (await stream.content.readline()).startswith(b"retry: ")
        webs.ask_to_end()
        assert (await socket.receive(PATIENCE)).type == aiohttp.WSMsgType.CLOSE
        assert socket.close_code == 1012
        async with asyncio.timeout(PATIENCE):
            await stream.content.read()
        assert stream.content.at_eof()
    assert await has_ended(webs.ending) == 0


async def test_request_that_has_begun_is_answered_and_idle_connections_are_closed(webs: Webs) -> None:
    await asyncio.to_thread(webs.start_session)
    host, port = webs.url.removeprefix("http://").split(":")
    head = (
        f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n",
        "X-Request: begun\r\n\r\n",
    )
    begun_reader, begun = await asyncio.open_connection(host, int(port))
    idle_reader, idle = await asyncio.open_connection(host, int(port))
    try:
        idle.write("".join(head).encode())
        assert b"200" in await idle_reader.readline()
        begun.write(head[0].encode())
        await begun.drain()
        # The web reads its connections in order of arrival, so it has read the beginning when it answers this.
        async with aiohttp.ClientSession() as http, http.get(f"{webs.url}/healthz") as answer:
            assert answer.status == 200
        webs.ask_to_end()
        async with asyncio.timeout(PATIENCE):
            await idle_reader.read()  # to its end
        begun.write(head[1].encode())
        async with asyncio.timeout(PATIENCE):
            answered = await begun_reader.read()
        assert answered.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in answered.lower()
    finally:
        begun.close()
        idle.close()
    assert await has_ended(webs.ending) == 0
