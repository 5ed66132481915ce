"""Connections that nobody authenticates are few and short, and never lock the control plane out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from executors_app.agentctl.daemon import listen_tcp
from executors_app.agentctl.host.certificate import load_or_create_certificate
from executors_app.agentctl.http import connections
from sessions_app.recovery.sweep.sweep_pass import MAX_CONCURRENT_ATTACHES
from tests.agentctl.running import TOKEN, Running, next_lines
from tests.waiting import pass_time

HOST = b"Host: 127.0.0.1:%d\r\n"
STARTS = {
    "silent": b"",
    "half a head": b"GET /status HTTP/1.1\r\n" + HOST,
    "without a token": b"GET /status HTTP/1.1\r\n" + HOST + b"\r\n",
    "with a wrong token": b"GET /status HTTP/1.1\r\n" + HOST + b"Authorization: Bearer wrong\r\n\r\n",
    "body that does not end": b"POST /prompt HTTP/1.1\r\n" + HOST + b"Content-Length: 1000\r\n\r\n{",
    "health": b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n",
    "handshake of TLS": b"\x16\x03\x01\x02\x00",
}
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Neighbour:
    """A process that can reach the port, without the token."""

    def __init__(self, port: int):
        self.port = port
        self.opened: list[Connection] = []

    async def connect(self, start: bytes = b"") -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.opened.append((reader, writer))
        writer.write(start % self.port if b"%d" in start else start)
        return reader

    async def close(self) -> None:
        for _, writer in self.opened:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@pytest_asyncio.fixture
async def neighbour(running: Running) -> AsyncIterator[Neighbour]:
    made = Neighbour(int(running.url.rpartition(":")[2]))
    yield made
    await made.close()


async def is_ended(reader: asyncio.StreamReader) -> bool:
    """Read to the end of a connection, for as long as that may take."""
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), timeout=60)
    return True


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
async def test_unauthenticated_connection_ends_soon(
    neighbour: Neighbour, running: Running, start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "FIRST_REQUEST_TIMEOUT", 0.2)
    async with running.events() as stream:
        assert await is_ended(await neighbour.connect(start))
        status, _ = await running.start()
        assert status == 200
        assert await next_lines(stream, 1)


async def test_authenticated_connection_stays_open_between_its_requests(
    neighbour: Neighbour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "FIRST_REQUEST_TIMEOUT", 0.2)
    request = b"GET /status HTTP/1.1\r\n" + HOST + b"Authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
    reader = await neighbour.connect(request)
    await reader.readuntil(b"\r\n\r\n")
    assert await is_ended(await neighbour.connect())
    assert not reader.at_eof()


async def test_many_connections_lock_nobody_out(
    neighbour: Neighbour, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_UNAUTHENTICATED", 8)
    async with running.events() as stream:
        readers = [await neighbour.connect(start) for _ in range(10) for start in STARTS.values()]
        assert all(await asyncio.gather(*map(is_ended, readers[: -2 * len(STARTS)])))
        status, _ = await running.start()
        assert status == 200
        assert await next_lines(stream, 1)


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "TLS"])
async def test_control_plane_opens_hundreds_of_connections_at_once(tmp_path: Path, is_encrypted: bool) -> None:
    certificate = load_or_create_certificate(tmp_path, ["127.0.0.1"])
    listener = listen_tcp("127.0.0.1", 0)
    port = listener.getsockname()[1]
    context = certificate.context() if is_encrypted else None
    trusting = ssl.create_default_context(cafile=str(certificate.certificate)) if is_encrypted else None
    runner = await connections.serve_app(web.Application(), listener, ssl_context=context)

    async def first_line() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        line = await reader.readline()
        writer.close()
        return line

    try:
        answers = await asyncio.gather(
            *[first_line() for _ in range(2 * MAX_CONCURRENT_ATTACHES)], return_exceptions=True
        )
    finally:
        await runner.cleanup()
    assert set(answers) == {b"HTTP/1.1 404 Not Found\r\n"}


async def test_request_that_arrived_in_time_is_answered_however_long_the_process_stood_still(
    neighbour: Neighbour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "FIRST_REQUEST_TIMEOUT", 30.0)
    reader = await neighbour.connect(STARTS["health"])
    await reader.readuntil(b"\r\n\r\n")  # so that it was accepted
    _, writer = neighbour.opened[0]
    request = b"GET /status HTTP/1.1\r\n" + HOST + b"Authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
    writer.write(request % neighbour.port)
    pass_time(31)
    assert b" 200 " in await reader.readuntil(b"\r\n\r\n")


async def test_handshakes_that_do_not_end_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_UNAUTHENTICATED", 2)
    certificate = load_or_create_certificate(tmp_path, ["127.0.0.1"])
    listener = listen_tcp("127.0.0.1", 0)
    neighbour = Neighbour(listener.getsockname()[1])
    runner = await connections.serve_app(web.Application(), listener, ssl_context=certificate.context())
    try:
        readers = [await neighbour.connect(start) for _ in range(4) for start in (b"", STARTS["handshake of TLS"])]
        assert all(await asyncio.gather(*map(is_ended, readers[:-2])))
        trusting = ssl.create_default_context(cafile=str(certificate.certificate))
        reader, writer = await asyncio.open_connection("127.0.0.1", neighbour.port, ssl=trusting)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 404")
        writer.close()
        await neighbour.close()
    finally:
        await runner.cleanup()


async def test_connections_that_ended_by_themselves_leave_room(
    neighbour: Neighbour, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_UNAUTHENTICATED", 8)
    waiting = await neighbour.connect()
    for _ in range(3):
        passing = Neighbour(neighbour.port)
        for _ in range(6):
            reader = await passing.connect(b"GET /health HTTP/1.0\r\n" + HOST + b"\r\n")
            await reader.readuntil(b"\r\n\r\n")
            assert await is_ended(reader)
        await passing.close()
        assert await running.get("/status")
    assert not waiting.at_eof()


LOOPBACK_6 = Path("/proc/net/if_inet6")
ADDRESSES = ["127.0.0.1"]
if LOOPBACK_6.exists() and f"{1:032}" in LOOPBACK_6.read_text():
    ADDRESSES.append("::1")


@pytest.mark.parametrize("address", ADDRESSES)
async def test_all_addresses_are_those_of_ipv4_and_ipv6(address: str) -> None:
    listener = listen_tcp("::", 0)
    port = listener.getsockname()[1]
    runner = await connections.serve_app(web.Application(), listener)
    try:
        reader, writer = await asyncio.open_connection(address, port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 404")
        writer.close()
    finally:
        await runner.cleanup()


def test_all_addresses_are_those_of_ipv4_where_the_kernel_has_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    make = socket.socket

    def without_ipv6(family: int, *options: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return make(family, *options)

    monkeypatch.setattr(socket, "socket", without_ipv6)
    with listen_tcp("::", 0) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"  # noqa: S104 - compared
