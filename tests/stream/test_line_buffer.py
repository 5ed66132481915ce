"""Frames of a stream reach the writer in order and in batches, however slow the writer is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from sessions_app.stream.ingest.batches import MAX_BUFFERED, MAX_BUFFERED_BYTES, LineBuffer
from tests.waiting import eventually_async

Lines = list[dict[str, Any]]


class Frames:
    """A stream of ``count`` frames of one line that counts how many were read."""

    def __init__(self, count: int, error: Exception | None = None, kind: str = "log"):
        self.count, self.error, self.kind, self.read = count, error, kind, 0

    async def __aiter__(self) -> AsyncIterator[Lines]:
        for number in range(self.count):
            self.read += 1
            yield [{"seq": number, "kind": self.kind}]
            await asyncio.sleep(0)
        if self.error:
            raise self.error


async def test_lines_received_during_a_write_form_the_next_batch() -> None:
    frames = Frames(100)
    async with aclosing(LineBuffer(aiter(frames)).batches()) as batches:
        first = await anext(batches)
        await eventually_async(lambda: frames.read == 100, describe="the whole stream is read")
        second = await anext(batches)
        assert [line["seq"] for line in first + second] == list(range(100))
        assert [batch async for batch in batches] == []


async def test_lines_that_were_taken_from_the_buffer_are_not_yielded() -> None:
    frames = Frames(100, kind="message.agent")
    buffer = LineBuffer(aiter(frames))
    async with aclosing(buffer.batches()) as batches:
        seen = await anext(batches)
        await eventually_async(lambda: frames.read == 100, describe="the whole stream is read")
        seen += buffer.take_output(50)
        async for batch in batches:
            seen += batch
    assert [line["seq"] for line in seen] == list(range(100))


async def test_stream_is_read_no_further_than_the_buffer_allows() -> None:
    frames = Frames(3 * MAX_BUFFERED)
    seen: list[int] = []
    async with aclosing(LineBuffer(aiter(frames)).batches()) as batches:
        async for batch in batches:
            await asyncio.sleep(0)
            assert frames.read <= len(seen) + len(batch) + MAX_BUFFERED
            seen += [line["seq"] for line in batch]
    assert seen == list(range(3 * MAX_BUFFERED))


async def test_stream_is_read_no_further_than_the_bytes_of_the_buffer_allow() -> None:
    frames, size = Frames(100), MAX_BUFFERED_BYTES // 4
    async with aclosing(LineBuffer(aiter(frames), lambda: size).batches()) as batches:
        async for batch in batches:
            await asyncio.sleep(0)
            assert len(batch) <= 4


async def test_stream_error_comes_after_all_preceding_lines() -> None:
    seen: Lines = []
    with pytest.raises(ConnectionError):
        async with aclosing(LineBuffer(aiter(Frames(5, ConnectionError("gone")))).batches()) as batches:
            async for batch in batches:
                seen += batch
    assert len(seen) == 5


async def test_reading_ends_when_the_consumer_stops() -> None:
    frames = Frames(10**9)
    async with aclosing(LineBuffer(aiter(frames)).batches()) as batches:
        await anext(batches)
    stopped_at = frames.read
    for _ in range(10):
        await asyncio.sleep(0)
    assert frames.read == stopped_at
