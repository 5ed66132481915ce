"""Pipes: bytes to lines, writes to a child, and rate limits for noisy output."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from executors_app.agentctl.process.async_io import LAST_OUTPUT_TIMEOUT, LineSplitter, PipeReader, PipeStuck, PipeWriter
from executors_app.wire.log_rate_limit import RateLimitedLog
from tests.waiting import PATIENCE


@pytest.mark.parametrize(
    ("pieces", "lines", "torn", "skipped"),
    [
        ([b"a\nb\n"], [b"a", b"b"], b"", 0),
        ([b"a", b"b\nc"], [b"ab"], b"c", 0),
        ([b"\n\n"], [b"", b""], b"", 0),
        ([b"a\n", b"", b"b"], [b"a"], b"b", 0),
        ([b"12345678\n", b"ok\n"], [b"12345678", b"ok"], b"", 0),
        ([b"123456789\nok\n"], [b"ok"], b"", 1),
        ([b"12345", b"6789", b"more", b"\nok\n"], [b"ok"], b"", 1),
    ],
)
def test_stream_is_split_into_lines(pieces: list[bytes], lines: list[bytes], torn: bytes, skipped: int) -> None:
    splitter = LineSplitter(limit=8)

    assert [line for piece in pieces for line in splitter.feed(piece)] == lines
    assert splitter.torn() == torn
    assert splitter.skipped == skipped


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read_end, write_end = os.pipe()
    yield read_end, write_end
    for descriptor in (read_end, write_end):
        try:
            os.close(descriptor)
        except OSError:
            continue


async def test_messages_of_concurrent_tasks_do_not_mix(pipe: tuple[int, int]) -> None:
    reader, writer = PipeReader(os.dup(pipe[0])), PipeWriter(os.dup(pipe[1]))
    messages = [bytes([letter]) * 300_000 + b"\n" for letter in b"abcd"]
    writing = asyncio.gather(*(writer.write(message, 10) for message in messages))

    read = b""
    while len(read) < sum(map(len, messages)):
        read += await reader.read()
    await writing
    writer.close()
    reader.close()

    assert read.splitlines(keepends=True) == messages


async def test_child_that_does_not_read_is_given_up(pipe: tuple[int, int]) -> None:
    writer = PipeWriter(os.dup(pipe[1]))

    with pytest.raises(PipeStuck):
        await writer.write(b"x" * 1_000_000, 0.05)
    os.read(pipe[0], 1_000_000)
    with pytest.raises(PipeStuck):
        await writer.write(b"next\n", 1)

    writer.close()
    with pytest.raises(BrokenPipeError):
        await PipeWriter(_closed_pipe()).write(b"x", 1)


def _closed_pipe() -> int:
    read_end, write_end = os.pipe()
    os.close(read_end)
    return write_end


async def test_output_left_after_exit_is_read_without_waiting_for_more(pipe: tuple[int, int]) -> None:
    reader = PipeReader(os.dup(pipe[0]))
    os.write(pipe[1], b"last words")
    reader.end()
    begin = time.monotonic()

    assert await reader.read() == b"last words"
    async with asyncio.timeout(PATIENCE):
        assert await reader.read() == b"", "another process still holds the writing end"
    assert time.monotonic() - begin >= LAST_OUTPUT_TIMEOUT
    reader.close()


async def test_close_ends_a_pending_read(pipe: tuple[int, int]) -> None:
    reader = PipeReader(os.dup(pipe[0]))
    reading = asyncio.create_task(reader.read())
    await asyncio.wait([reading], timeout=0)

    reader.close()

    assert await reading == b""


async def test_bytes_that_arrive_between_two_reads_wait_for_the_second(pipe: tuple[int, int]) -> None:
    reader = PipeReader(os.dup(pipe[0]))
    for word in (b"one", b"two", b"three"):
        reading = asyncio.create_task(reader.read())
        await asyncio.wait([reading], timeout=0)
        os.write(pipe[1], word)
        assert await reading == word
        os.write(pipe[1], b"between")
        await asyncio.sleep(0.01)  # the loop sees them while nobody reads
        assert await reader.read() == b"between"
    reader.close()


def test_rate_limit_allows_a_burst_and_then_a_few_lines() -> None:
    now, recorded = [0.0], list[dict[str, Any]]()
    valve = RateLimitedLog(
        lambda _, **body: recorded.append(body), "stderr", burst=3, per_second=1.0, clock=lambda: now[0]
    )
    for number in range(10):
        valve.put(b"line %d" % number)
    assert [each["text"] for each in recorded] == ["line 0", "line 1", "line 2"]

    now[0] = 1.0
    valve.put(b"later")

    assert [each["text"] for each in recorded][3:] == ["7 more lines of stderr (42 B) were left out", "later"]
    assert valve.tail().endswith("line 9\nlater")


def test_rate_limited_log_truncates_long_lines_and_replaces_invalid_bytes() -> None:
    recorded = list[dict[str, Any]]()
    valve = RateLimitedLog(lambda _, **body: recorded.append(body), "stderr")

    valve.put(b"\xff" + b"x" * 10_000)
    valve.put(b"   ")

    assert [len(each["text"]) for each in recorded] == [2000]
    assert recorded[0]["text"].startswith("\ufffdx")
