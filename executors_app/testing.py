"""Far ends that misbehave, for tests of whoever speaks to agentctl; each is named by what it does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Served = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """Sends ``answer``, whatever it is, to whoever has sent a request head, and closes; yields the URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    async with _served(serve) as url:
        yield url


@asynccontextmanager
async def flooding(start: bytes, chunk: bytes) -> AsyncIterator[str]:
    """Sends ``start`` and then ``chunk`` without an end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(start)
        while not writer.is_closing():
            writer.write(chunk)
            await writer.drain()

    async with _served(serve) as url:
        yield url


@asynccontextmanager
async def hanging() -> AsyncIterator[str]:
    """Accepts, reads, and never says a word."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with _served(serve) as url:
        yield url


@asynccontextmanager
async def closing() -> AsyncIterator[str]:
    """Reads the request and closes without an answer."""
    async with answering(b"") as url:
        yield url


def refusing_url() -> str:
    """Where nobody listens: the port was free a moment ago."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def http_answer(status: int, body: bytes, *headers: str) -> bytes:
    """An HTTP answer as bytes."""
    head = (f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close", *headers)
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def _served(serve: Served) -> AsyncIterator[str]:
    open_ones: set[asyncio.StreamWriter] = set()

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.add(writer)
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        server.close()
        for writer in open_ones:
            writer.close()
