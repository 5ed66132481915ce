"""A running server, real sockets and real crashes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket as sockets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kandev.web_server import FRAME_BURST, SMALL_FRAME_BURST
from sessions_app.stream.live.hub import ACK_TIMEOUT, CHECK_EVERY
from tests.drills.deployment import Deployment, Session
from tests.drills.process_groups import descendants
from tests.stream.live.talker import Talker
from tests.waiting import PATIENCE, eventually_async


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Yield one deployment for all tests of this module; its session never starts an agent."""
    made = Deployment(tmp_path_factory.mktemp("served"))
    made.prepare()
    made.serve()
    yield made
    made.close()


@pytest.fixture(scope="module")
def talker(deployment: Deployment) -> Iterator[Talker]:
    made = Talker(deployment)
    yield made
    made.close()


@pytest.fixture
def session(deployment: Deployment) -> Session:
    return deployment.start_session("Nothing", desired_state="stopped")


@asynccontextmanager
async def connected(
    session: Session, after: int = 0, who: str = "token", socket_factory: Any = None
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Open a socket as a program does."""
    deployment = session.deployment
    headers = {"Authorization": f"Token {deployment.seeded[who]}"}
    url = f"{deployment.url}/ws/sessions/{session.id}/?after={after}"
    connector = aiohttp.TCPConnector(socket_factory=socket_factory)
    async with aiohttp.ClientSession(connector=connector) as http, http.ws_connect(url, headers=headers) as found:
        yield found


async def read(socket: aiohttp.ClientWebSocketResponse, seen: list[int], until: int, every: int = 100) -> None:
    """Collect the seqs of events up to ``until`` or until the socket closes, acknowledging every ``every`` events."""
    while (not seen or seen[-1] < until) and (message := await socket.receive(PATIENCE)).type == aiohttp.WSMsgType.TEXT:
        frame = json.loads(message.data)
        if frame["type"] == "event":
            seen.append(frame["seq"])
            if len(seen) % every == 0:
                await socket.send_json({"type": "ack", "seq": frame["seq"]})


async def test_client_gets_every_event_once_across_client_and_web_crashes(session: Session, talker: Talker) -> None:
    talker.begin("say", session.id, 3000, 20)
    seen: list[int] = []
    async with connected(session) as socket:
        await read(socket, seen, 300)
        connection = socket._response.connection
        assert connection is not None
        assert connection.transport is not None
        connection.transport.abort()
    async with connected(session, seen[-1]) as socket:
        await read(socket, seen, 900)
        kill_web(session.deployment)
        await read(socket, seen, 3000)
    assert seen[-1] < 3000
    await eventually_async(session.deployment.is_ready, describe="the web process is ready")
    async with connected(session, seen[-1]) as socket:
        await read(socket, seen, 3000)
    assert seen == list(range(1, 3001))
    assert talker.done() == "3000"


def kill_web(deployment: Deployment) -> None:
    os.kill(web_of(deployment), signal.SIGKILL)


def web_of(deployment: Deployment) -> int:
    """Return the pid of the web process."""
    assert deployment.server is not None
    (found,) = (
        pid for pid in descendants(deployment.server.pid) if Path(f"/proc/{pid}/comm").read_text() == "kandev-web\n"
    )
    return found


@pytest.mark.any_database
async def test_client_that_never_acknowledges_is_closed_and_costs_little_memory(
    session: Session, talker: Talker
) -> None:
    """One client reads and is told to reconnect; the other does not even read."""
    web, seen = web_of(session.deployment), list[int]()
    async with unread_socket(session) as port, connected(session) as mute:
        before = memory(web)
        assert talker.do("say", session.id, 600, 100_000) == "600"
        while (message := await mute.receive(PATIENCE)).type == aiohttp.WSMsgType.TEXT:
            frame = json.loads(message.data)
            seen += [frame["seq"]] if frame["type"] == "event" else []
        assert mute.close_code == 4408
        await eventually_async(
            lambda: not is_connected(port), timeout=90, describe="the server has closed the connection"
        )
        assert memory(web) - before < 60_000_000, "less than half of what was sent to the two"
    async with connected(session, seen[-1]) as socket:
        await read(socket, seen, 600, every=20)
    assert seen == list(range(1, 601))


async def test_slow_reader_gets_the_too_slow_close_code(session: Session, talker: Talker) -> None:
    """The client reads nothing until well after the server has closed, while its buffers are still full."""
    async with connected(session, socket_factory=socket_with_small_buffer) as slow:
        assert talker.do("say", session.id, 300, 100_000) == "300"
        await asyncio.sleep(ACK_TIMEOUT + 2.5)
        while (await slow.receive(PATIENCE)).type == aiohttp.WSMsgType.TEXT:
            pass
        assert slow.close_code == 4408


def socket_with_small_buffer(address: Any) -> sockets.socket:
    """Return a socket with a small receive buffer."""
    made = sockets.socket(*address[:3])
    made.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 16 * 1024)
    return made


@asynccontextmanager
async def unread_socket(session: Session) -> AsyncIterator[int]:
    """Open a WebSocket by hand and read nothing after the handshake; yield its local port."""
    address = session.deployment.url.removeprefix("http://")
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    lines = (
        f"GET /ws/sessions/{session.id}/ HTTP/1.1",
        f"Host: {address}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        f"Authorization: Token {session.deployment.seeded['token']}",
    )
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    assert b" 101 " in await reader.readline()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    try:
        yield writer.get_extra_info("sockname")[1]
    finally:
        writer.transport.abort()


def memory(pid: int) -> int:
    """Return a process's private memory in bytes, without the mapped database."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def is_connected(port: int) -> bool:
    """Return whether the server's end of a connection from ``port`` is open."""
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return any(row[2].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


async def test_removed_member_loses_the_socket_within_five_seconds(session: Session, talker: Talker) -> None:
    session.deployment.seeded["colleague"] = talker.do("hire", "colleague")
    async with connected(session, who="colleague") as lost, connected(session) as kept:
        assert (await lost.receive_json())["type"] == "hello"
        assert (await kept.receive_json())["type"] == "hello"
        assert talker.do("expel", "colleague") == "None"
        assert (await lost.receive(PATIENCE)).type == aiohttp.WSMsgType.CLOSE
        assert CHECK_EVERY < 5
        assert lost.close_code == 4404
        talker.do("say", session.id, 1, 1)
        assert (await kept.receive_json(timeout=PATIENCE))["seq"] == 1


async def test_oversized_message_is_rejected_and_the_socket_stays_open(session: Session) -> None:
    async with connected(session) as socket:
        assert (await socket.receive_json())["type"] == "hello"
        await socket.send_str(json.dumps({"type": "request", "id": "1", "action": "ping", "payload": "x" * 2_000_000}))
        refused = await socket.receive_json(timeout=PATIENCE)
        assert (refused["ok"], refused["error"]["code"]) == (False, "too_large")
        await socket.send_json({"type": "request", "id": "2", "action": "ping"})
        assert (await socket.receive_json(timeout=PATIENCE))["ok"] is True


async def test_stream_continues_after_the_last_event_id(session: Session, talker: Talker) -> None:
    talker.do("say", session.id, 50, 20)
    assert await streamed(session, {}, 20) == list(range(1, 21))
    talker.begin("say", session.id, 100, 20)
    assert await streamed(session, {"Last-Event-ID": "20"}, 130) == list(range(21, 151))
    talker.done()


async def streamed(session: Session, headers: dict[str, str], count: int) -> list[int]:
    """Return the ids of the first events of a stream."""
    headers = {"Authorization": f"Token {session.deployment.seeded['token']}", **headers}
    found: list[int] = []
    url = f"{session.deployment.url}/api/v1/{session.path}/events/stream"
    async with aiohttp.ClientSession() as http, http.get(url, headers=headers) as answer:
        assert answer.status == 200
        async for line in answer.content:
            if line.startswith(b"id: "):
                found.append(int(line.removeprefix(b"id: ")))
            if len(found) == count:
                break
        answer.close()
    return found


@pytest.mark.embedded
async def test_open_streams_hold_no_database_connection(session: Session, talker: Talker) -> None:
    talker.do("say", session.id, 1, 1)
    web = web_of(session.deployment)
    headers = {"Authorization": f"Token {session.deployment.seeded['token']}"}
    url = f"{session.deployment.url}/api/v1/{session.path}/events/stream"
    async with aiohttp.ClientSession() as http, AsyncExitStack() as stack:
        for _ in range(20):
            answer = await stack.enter_async_context(http.get(url, headers=headers))
            while not (await answer.content.readline()).startswith(b"id: "):
                pass
        await eventually_async(
            lambda: database_files(web) < 10, describe="only the files of the reader and of one request are open"
        )


def database_files(pid: int) -> int:
    """Return how many descriptors of a process belong to the database: file, log and index of each connection."""
    links = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(str(path.readlink()))
        except FileNotFoundError:
            continue
    return sum("kandev.sqlite3" in link for link in links)


@pytest.mark.parametrize(
    ("frame", "count"), [("{}", FRAME_BURST + 2000), ('{"x": "' + "x" * 500_000 + '"}', 40)], ids=["frames", "bytes"]
)
async def test_client_that_sends_too_much_is_closed(session: Session, frame: str, count: int) -> None:
    async with connected(session) as socket:
        await socket.receive_json()

        async def send() -> None:
            with suppress(ConnectionError, aiohttp.ClientError):
                for _ in range(count):
                    await socket.send_str(frame)

        sending = asyncio.create_task(send())
        async with asyncio.timeout(PATIENCE):
            while (await socket.receive()).type == aiohttp.WSMsgType.TEXT:
                pass
        sending.cancel()
        assert socket.close_code == 4429
    async with connected(session) as socket:
        assert (await socket.receive_json())["type"] == "hello"


@pytest.mark.parametrize(
    "frames",
    [[b"\x89\x80\0\0\0\0"], [b"\x8a\x80\0\0\0\0"], [b"\x01\x80\0\0\0\0", b"\x00\x80\0\0\0\0"]],
    ids=["pings", "pongs", "parts of a message"],
)
async def test_client_that_sends_too_many_frames_that_are_no_messages_is_closed(
    session: Session, frames: list[bytes]
) -> None:
    *first, repeated = frames
    async with connected(session) as socket:
        await socket.receive_json()
        transport = socket._writer.transport  # the client's own methods send whole messages only
        transport.write(b"".join(first) + repeated * (SMALL_FRAME_BURST + 2000))
        async with asyncio.timeout(PATIENCE):
            while (await socket.receive()).type is not aiohttp.WSMsgType.CLOSE and not socket.closed:
                pass
        assert socket.close_code == 4429
