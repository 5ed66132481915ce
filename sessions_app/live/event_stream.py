"""A session's log as Server-Sent Events, for clients that only read."""

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
"""Seconds without a line after which a comment is sent, so that proxies keep the connection open."""
MAX_BYTES: Final = 32 * 1024 * 1024
"""Bytes after which a stream ends: the server buffers what a client does not read. The client reconnects."""
RETRY_AFTER: Final = b"retry: 1000\n\n"


class EventStream(Subscriber):
    """A subscriber whose lines wait here until the web server takes them, which counts as their acknowledgement."""

    def __init__(self, subscription: Subscription, start: StreamStart):
        super().__init__(subscription, {start.log: start.seq})
        self._lines: list[LogLine] = []
        self._available = asyncio.Event()

    async def transmit(self, lines: Sequence[LogLine]) -> None:
        """Put lines where ``chunks`` takes them from."""
        self._lines.extend(lines)
        self._available.set()

    async def close(self, code: CloseCode) -> None:
        """End ``chunks``."""
        self._lines.clear()
        self._available.set()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield lines and heartbeats until the stream is closed or has reached ``MAX_BYTES``."""
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
            # Only now: the server asks for the next chunk when it has taken this one.
            self.window.ack(lines[-1].log.session_id, lines[-1].seq)


async def event_stream(subscription: Subscription, start: StreamStart) -> AsyncIterator[bytes]:
    """Yield the chunks of a response that lasts until the client leaves or loses access."""
    # The request's thread lives as long as the response; its database connection must not.
    await sync_to_async(connections.close_all)()
    stream = EventStream(subscription, start)
    try:
        # Joined before the snapshot is sent, fed after it: no line is missed, and none comes before the snapshot.
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
