"""Frames of a stream, gathered into batches while the last one is being written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

Lines = list[dict[str, Any]]

MOST_WAITING = 2000
"""Lines that may wait, give or take a frame: what is written in 10 to 15 ms, so that others get their turn.

Behind them the stream is not read; agentctl's journal holds the rest."""


async def gathered(frames: AsyncIterator[Lines]) -> AsyncGenerator[Lines, None]:
    """Whatever has come since the last batch, in order; raises what ``frames`` raises, after all that came before."""
    waiting: Lines = []
    news, room = asyncio.Event(), asyncio.Event()
    reader = asyncio.create_task(_read(frames, waiting, news, room))
    reader.add_done_callback(lambda _: news.set())
    try:
        while waiting or not reader.done():
            await news.wait()
            news.clear()
            lines, waiting[:] = list(waiting), []
            room.set()
            if lines:
                yield lines
        await reader
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def _read(frames: AsyncIterator[Lines], waiting: Lines, news: asyncio.Event, room: asyncio.Event) -> None:
    async for frame in frames:
        waiting.extend(frame)
        news.set()
        if len(waiting) >= MOST_WAITING:
            room.clear()
            await room.wait()
