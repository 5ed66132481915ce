"""Read the frames of one stream ahead of the writer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from itertools import takewhile
from typing import Any

from sessions_app.stream.conversation import OUTPUT_KINDS
from sessions_app.stream.ingest.shares import line_bytes

Lines = list[dict[str, Any]]
MAX_BUFFERED = 2000
"""Lines that may wait, give or take a frame: they are written in 10 to 15 ms, so that other streams get their turn.

When this many wait, the stream is not read further; agentctl's journal keeps the rest."""
MAX_BUFFERED_BYTES = 4 << 20
"""Bytes that may wait, give or take a frame; a frame has 64 KiB, or one line that is longer."""


class LineBuffer:
    """The lines of one stream that have arrived and that nobody has taken yet, in order.

    The stream takes them as batches. While a batch waits for its transaction, the writer takes the output that has
    arrived meanwhile, which then belongs to that batch.
    """

    def __init__(self, frames: AsyncIterator[Lines]):
        self._frames = frames
        self._lines: Lines = []
        self._has_news, self._has_room = asyncio.Event(), asyncio.Event()

    async def batches(self) -> AsyncGenerator[Lines, None]:
        """Yield all lines that have arrived since the last batch; an error of the frames is raised after them."""
        reader = asyncio.create_task(self._read_frames())
        reader.add_done_callback(lambda _: self._has_news.set())
        try:
            while self._lines or not reader.done():
                await self._has_news.wait()
                self._has_news.clear()
                lines = self._take(len(self._lines))
                self._has_room.set()
                if lines:
                    yield lines
            await reader
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    def take_output(self, limit: int) -> Lines:
        """Take the output of the agent that comes next, up to any other line and at most ``limit`` lines."""
        output = list(takewhile(lambda line: line.get("kind") in OUTPUT_KINDS, self._lines[:limit]))
        return self._take(len(output))

    def _take(self, count: int) -> Lines:
        taken = self._lines[:count]
        del self._lines[:count]
        return taken

    async def _read_frames(self) -> None:
        buffered = 0
        async for frame in self._frames:
            if not self._lines:
                buffered = 0
            self._lines.extend(frame)
            buffered += sum(map(line_bytes, frame))
            self._has_news.set()
            if len(self._lines) >= MAX_BUFFERED or buffered >= MAX_BUFFERED_BYTES:
                self._has_room.clear()
                await self._has_room.wait()
                buffered = 0
