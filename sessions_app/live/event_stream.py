"""A log as Server-Sent Events, for those who only listen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

import orjson
from asgiref.sync import sync_to_async
from django.db import connections

from sessions_app.live.authentication import CloseCode, Subscription
from sessions_app.live.hub import Subscriber, TooManySubscriptions, get_hub
from sessions_app.live.log_reader import LogLine, StreamStart

HEARTBEAT: Final = 15.0
"""Seconds between two signs of life."""
MAX_BYTES: Final = 32 * 1024 * 1024
"""Of one stream: the server buffers for who does not read, so it ends, and the client goes on with another."""
RETRY_AFTER: Final = b"retry: 1000\n\n"


class EventStream(Subscriber):
    """One listener. What it was handed waits here until the server takes it, and only then is acknowledged."""

    def __init__(self, subscription: Subscription, start: StreamStart):
        super().__init__(subscription, {start.log: start.seq})
        self._lines: list[LogLine] = []
        self._available = asyncio.Event()

    async def transmit(self, lines: Sequence[LogLine]) -> None:
        """Lay the lines out for ``chunks``."""
        self._lines.extend(lines)
        self._available.set()

    async def close(self, code: CloseCode) -> None:
        """End ``chunks``."""
        self._lines.clear()
        self._available.set()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Lines and heartbeats until the stream is cut, or has become long."""
        told = 0
        while told < MAX_BYTES:
            try:
                async with asyncio.timeout(HEARTBEAT):
                    await self._available.wait()
            except TimeoutError:
                yield b": heartbeat\n\n"
                continue
            self._available.clear()
            if self.is_closed:
                return
            lines, self._lines = self._lines, []
            chunk = "".join(f"id: {line.seq}\ndata: {line.text}\n\n" for line in lines).encode()
            told += len(chunk)
            yield chunk
            self.window.ack(lines[-1].log.session_id, lines[-1].seq)


async def event_stream(subscription: Subscription, start: StreamStart) -> AsyncIterator[bytes]:
    """The chunks of a response that goes on until the client or its right to listen has gone."""
    # The request's thread waits with the response: its connection must not.
    await sync_to_async(connections.close_all)()
    stream = EventStream(subscription, start)
    try:
        get_hub().join(stream, {start.log: start.head})
        yield RETRY_AFTER
        if start.snapshot is not None:
            told = orjson.dumps({"type": "truncated", "snapshot": start.snapshot})
            yield b"id: %d\ndata: %s\n\n" % (start.seq, told)
        get_hub().start_feeding(stream)
        async for chunk in stream.chunks():
            yield chunk
    except TooManySubscriptions:
        return
    finally:
        get_hub().leave(stream)
