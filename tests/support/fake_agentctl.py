"""Fake agentctls for tests and benchmarks.

Servers that misbehave in one named way, and a fleet in one process (``python -m tests.support.fake_agentctl --count
1000``).
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import json
import signal
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Self

from executors_app.machine import sockets
from executors_app.machine.process import identity
from executors_app.wire import socket_urls
from executors_app.wire.protocol import PROTOCOL_VERSION
from tests.network import free_port

ConnectionHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering_server(answer: bytes, path: Path | None = None) -> AsyncIterator[str]:
    """Yield the URL of a server that answers every request with ``answer`` and closes the connection.

    With ``path`` it listens on a Unix socket there.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    async with _served(serve, path) as url:
        yield url


@asynccontextmanager
async def flooding_server(start: bytes, chunk: bytes) -> AsyncIterator[str]:
    """Yield the URL of a server that answers with ``start`` and then repeats ``chunk`` without end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(start)
        while not writer.is_closing():
            writer.write(chunk)
            await writer.drain()

    async with _served(serve) as url:
        yield url


@asynccontextmanager
async def hanging_server(path: Path | None = None) -> AsyncIterator[str]:
    """Yield the URL of a server that accepts connections and never answers; with ``path``, on a Unix socket there."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with _served(serve, path) as url:
        yield url


@asynccontextmanager
async def closing_server() -> AsyncIterator[str]:
    """Yield the URL of a server that reads the request and closes the connection without an answer."""
    async with answering_server(b"") as url:
        yield url


def refusing_url() -> str:
    """Return a URL on which nothing listens, and which no connection takes as its own port."""
    return f"http://127.0.0.1:{free_port()}"


def http_response(status: int, body: bytes, *headers: str) -> bytes:
    """Return an HTTP response as bytes."""
    head = (f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close", *headers)
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def _served(serve: ConnectionHandler, path: Path | None = None) -> AsyncIterator[str]:
    open_ones: set[asyncio.StreamWriter] = set()

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.add(writer)
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    if path is None:
        server = await asyncio.start_server(guarded, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        url = f"http://{host}:{port}"
    else:
        server = await asyncio.start_unix_server(guarded, path)
        url = socket_urls.unix_url(path)
    try:
        yield url
    finally:
        server.close()
        for writer in open_ones:
            writer.close()


Behaviour = Literal["answers", "hangs", "refuses"]
_BACKLOG: Final = 16
_NAMESPACE: Final = uuid.UUID("6b0a3a6e-7d0c-4f0e-9a44-0f5a1d2f7c11")


@dataclass(frozen=True, slots=True)
class FakeAgentctl:
    """One fake agentctl of a fleet; all its values follow from its number."""

    execution_id: str
    session_id: str
    url: str
    token: str
    behaviour: Behaviour
    process: Mapping[str, Any] = field(default_factory=dict)
    """The process that listens, as in the ``state`` of an ``executors_running`` row; empty if it is not recorded."""


def plan_fleet(
    count: int, base: str, port: int, *, hanging: int = 0, refusing: int = 0, directory: Path | None = None
) -> list[FakeAgentctl]:
    """Return the plan of a fleet on consecutive addresses from ``base`` with one port, or on sockets in a directory."""
    if not ipaddress.ip_address(base).is_loopback or not ipaddress.ip_address(int(_ip(base)) + count).is_loopback:
        raise ValueError(f"{base} and the {count} addresses behind it are not all loopback.")

    def one(number: int) -> FakeAgentctl:
        left = count - number
        behaviour: Behaviour = "answers"
        if left <= refusing:
            behaviour = "refuses"
        elif left <= refusing + hanging:
            behaviour = "hangs"
        url = f"http://{_ip(base) + number}:{port}"
        if directory:
            url = socket_urls.unix_url(directory / f"{number}.sock")
        return FakeAgentctl(
            execution_id=str(uuid.uuid5(_NAMESPACE, f"execution {number}")),
            session_id=str(uuid.uuid5(_NAMESPACE, f"session {number}")),
            url=url,
            token=uuid.uuid5(_NAMESPACE, f"token {number}").hex,
            behaviour=behaviour,
        )

    return [one(number) for number in range(count)]


def fake_status(member: FakeAgentctl) -> Mapping[str, Any]:
    """Return the answer to ``GET /status`` of an idle agentctl with a live agent (``protocol.Status``)."""
    return {
        "status": "ok",
        "version": PROTOCOL_VERSION,
        "boot_id": uuid.uuid5(_NAMESPACE, member.execution_id).hex,
        "capabilities": {
            "supports_session_resume": True,
            "supports_workspace_only": True,
            "requires_new_session": False,
            "history": False,
            "protocol": "acp",
            "load_session": True,
            "resume_session": False,
            "agent": {"name": "fake", "version": "1"},
        },
        "session_id": member.session_id,
        "execution_id": member.execution_id,
        "generation": 0,
        "agent": {
            "state": "idle",
            "pid": 1,
            "started_at": "2026-01-01T00:00:00+00:00",
            "session_fingerprint": "0123456789abcdef",
            "active_turn": None,
            "exit_code": None,
            "launch_id": "fake",
        },
        "journal": {"epoch": "fake", "first_seq": 1, "last_seq": 0},
        "pending_permissions": [],
        "workspace": {"path": "/", "exists": True, "branch": "main", "dirty": False},
    }


class FakeFleet:
    """The listening sockets of a fleet and their answers: ``async with FakeFleet(plan_fleet(...))``."""

    def __init__(self, members: Sequence[FakeAgentctl]):
        self.members = members
        self.hanging: list[asyncio.BaseTransport] = []
        """Connections to members that never answer."""
        self._servers: list[asyncio.Server] = []

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for member in self.members:
            if member.behaviour == "refuses":
                continue
            listener = _listener(member.url)
            served = partial(_Hanging, self.hanging) if member.behaviour == "hangs" else _answering(member)
            self._servers.append(await loop.create_server(served, sock=listener, backlog=_BACKLOG))
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()


class _Hanging(asyncio.Protocol):
    """Accepts connections and never answers."""

    def __init__(self, connections: list[asyncio.BaseTransport]):
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._connections.append(transport)


class _Answering(asyncio.Protocol):
    """Answers one request and closes the connection; the answers are made once for each member."""

    def __init__(self, bearer: bytes, good: bytes, foreign: bytes):
        self._bearer, self._good, self._foreign = bearer, good, foreign
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport for the answer."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer when the head of the request is complete."""
        self._read += data
        if b"\r\n\r\n" not in self._read or not isinstance(self._transport, asyncio.Transport):
            return
        is_status_request = self._read.startswith(b"GET /status ") and self._bearer in self._read
        self._transport.write(self._good if is_status_request else self._foreign)
        self._transport.close()


def _answering(member: FakeAgentctl) -> Any:
    body = json.dumps(fake_status(member)).encode()
    refusal = json.dumps({"code": "not_authenticated", "message": "Wrong token.", "details": {}}).encode()
    head = "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    good = (head % ("200 OK", len(body))).encode() + body
    foreign = (head % ("401 Unauthorized", len(refusal))).encode() + refusal
    bearer = f"\r\nAuthorization: Bearer {member.token}\r\n".encode()
    return lambda: _Answering(bearer, good, foreign)


def _listener(url: str) -> socket.socket:
    if path := socket_urls.unix_path(url):
        return sockets.listen_unix(path, _BACKLOG)
    host, _, port = url.removeprefix("http://").rpartition(":")
    # The protocol must be given, or asyncio does not set TCP_NODELAY.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setblocking(False)
    listener.bind((host, int(port)))
    return listener


def _ip(text: str) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(text)


async def _serve(members: Sequence[FakeAgentctl]) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    async with FakeFleet(members):
        sys.stdout.write(json.dumps([asdict(member) for member in members]) + "\n")
        sys.stdout.flush()
        await ended.wait()


def main() -> None:
    """Serve the fleet that the command line describes."""
    parser = argparse.ArgumentParser(prog="fake_agentctl", description="Serve a fleet of fake agentctls.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--base", default="127.1.0.0", help="the first address")
    parser.add_argument("--port", type=int, default=4700)
    parser.add_argument("--directory", type=Path, help="0700; sockets in it take the place of addresses")
    parser.add_argument("--hanging", type=int, default=0)
    parser.add_argument("--refusing", type=int, default=0)
    options = parser.parse_args()
    fleet = {"hanging": options.hanging, "refusing": options.refusing, "directory": options.directory}
    members = plan_fleet(options.count, options.base, options.port, **fleet)
    process = identity.identify_self().to_json()
    # A process that does not answer counts as dead unless it is called agentctl, which this one is not. So its identity
    # is not recorded.
    asyncio.run(_serve([one if one.behaviour == "hangs" else replace(one, process=process) for one in members]))


if __name__ == "__main__":
    main()
