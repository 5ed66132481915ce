"""A consumer that reconnects misses nothing and gets nothing twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from executors_app.agentctl.journal import JournalLimits
from executors_app.wire.protocol import CLOSE_STALE_GENERATION, JournalKind
from tests.agentctl.running import Running, agentctl, next_lines
from tests.waiting import PATIENCE, eventually_async


async def test_stored_lines_are_followed_by_live_ones(started: Running) -> None:
    async with started.events() as socket:
        old = await next_lines(socket, 4)
        await started.prompt("hello")
        live = await next_lines(socket, 4)

    assert [line["seq"] for line in old + live] == list(range(1, 9))
    assert old[0]["kind"] == "agent.starting"
    assert live[-1]["kind"] == "turn.completed"


@pytest.mark.parametrize("after", [0, 1, 3, 4])
async def test_consumer_continues_after_its_last_line(started: Running, after: int) -> None:
    async with started.events(after, started.sidecar.journal.epoch) as socket:
        started.sidecar.journal.append(JournalKind.LOG, text="last")
        lines = await next_lines(socket, 5 - after)

    assert [line["seq"] for line in lines] == list(range(after + 1, 6))


@pytest.mark.parametrize(("after", "epoch"), [(2, "another"), (2, ""), (99, None), (0, "another")])
async def test_unknown_position_is_reported_and_the_stream_starts_over(
    started: Running, after: int, epoch: str | None
) -> None:
    here = started.sidecar.journal.epoch
    async with started.events(after, here if epoch is None else epoch) as socket:
        truncated, *lines = await next_lines(socket, 5)

    assert truncated == {"type": "truncated", "epoch": here, "first_seq": 1, "last_seq": 4}
    assert [line["seq"] for line in lines] == [1, 2, 3, 4]


async def test_acknowledged_lines_are_reported_as_truncated(tmp_path: Path) -> None:
    async with agentctl(tmp_path, JournalLimits(segment=1)) as running:
        journal = running.sidecar.journal
        for _ in range(6):
            await journal.wait_until_durable(journal.append(JournalKind.LOG, text="x"))
        async with running.events() as socket:
            await next_lines(socket, 6)
            await socket.send_str('{"ack": 4}')
            await eventually_async(lambda: journal.first_seq == 5)
        async with running.events(2, journal.epoch) as socket:
            truncated, *lines = await next_lines(socket, 3)

    assert (truncated["type"], truncated["first_seq"]) == ("truncated", 5)
    assert [line["seq"] for line in lines] == [5, 6]


async def test_acknowledgement_cannot_exceed_what_was_sent(tmp_path: Path) -> None:
    async with agentctl(tmp_path, JournalLimits(segment=1)) as running:
        journal = running.sidecar.journal
        for _ in range(3):
            await journal.wait_until_durable(journal.append(JournalKind.LOG, text="x"))
        async with running.events(1, journal.epoch) as socket:
            await next_lines(socket, 2)
            for odd in ("{", "[]", "null", '{"ack": "3"}', '{"ack": true}', '{"ack": -5}', '{"else": 1}', '{"ack": 2}'):
                await socket.send_str(odd)
            await eventually_async(lambda: journal.first_seq == 3)
            await socket.send_str('{"ack": 999999}')
            await journal.wait_until_durable(journal.append(JournalKind.LOG, text="x"))
            assert [line["seq"] for line in await next_lines(socket, 1)] == [4]
        assert journal.first_seq == 3


async def test_newer_generation_closes_older_streams_and_refuses_new_ones(started: Running) -> None:
    async with started.events(generation=3) as old, started.events(generation=3) as twin:
        await next_lines(old, 4)
        await next_lines(twin, 4)
        async with started.events(generation=4) as new:
            for overtaken in (old, twin):
                message = await overtaken.receive(timeout=PATIENCE)
                assert message.type == aiohttp.WSMsgType.CLOSE
                assert overtaken.close_code == CLOSE_STALE_GENERATION
            await next_lines(new, 4)
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await started.events(generation=3)
            assert refused.value.status == 409
            started.sidecar.journal.append(JournalKind.LOG, text="still there")
            await next_lines(new, 1)

    assert (await started.get("/status"))["generation"] == 4


async def test_command_of_a_newer_generation_closes_older_streams(started: Running) -> None:
    async with started.events(generation=1) as socket:
        await next_lines(socket, 4)
        started.generation = 2
        await started.prompt("hello")
        while (await socket.receive(timeout=PATIENCE)).type == aiohttp.WSMsgType.TEXT:
            pass
        assert socket.close_code == CLOSE_STALE_GENERATION


@pytest.mark.parametrize("query", ["", "generation=x", "generation=1&after=-1", "generation=1&after=1e3"])
async def test_invalid_stream_request_is_refused(running: Running, query: str) -> None:
    async with running.http.get(f"{running.url}/events?{query}", headers=running.headers) as response:
        assert response.status == 400
        assert (await response.json())["code"] == "validation_error"


async def test_plain_request_opens_no_stream_and_raises_no_generation(running: Running) -> None:
    async with running.http.get(f"{running.url}/events?generation=9", headers=running.headers) as response:
        assert response.status == 400

    assert (await running.get("/status"))["generation"] == 0


async def test_many_lines_arrive_in_few_frames_and_in_order(running: Running) -> None:
    journal = running.sidecar.journal
    for number in range(20_000):
        last = journal.append(JournalKind.MESSAGE_AGENT, text=f"chunk {number} " + "x" * 40)
    await journal.wait_until_durable(last)

    frames = 0
    seqs: list[int] = []
    async with running.events() as socket:
        while len(seqs) < 20_000:
            seqs += [line["seq"] for line in await next_lines(socket, 1)]
            frames += 1

    assert seqs == list(range(1, 20_001))
    assert frames < 100


async def test_slow_consumer_uses_no_memory_and_blocks_nobody(running: Running) -> None:
    journal = running.sidecar.journal
    async with running.events() as idle, running.events() as reading:
        for _ in range(80):
            last = journal.append(JournalKind.MESSAGE_AGENT, text="x" * (1 << 20))
            await journal.wait_until_durable(last)
        seen = 0
        while seen < last:
            seen = (await next_lines(reading, 1))[-1]["seq"]

        assert min(stream.sent for stream in running.streams._open) < last / 2
        assert (await asyncio.wait_for(running.get("/status"), PATIENCE))["journal"]["last_seq"] == last
        assert (await next_lines(idle, 1))[0]["seq"] == 1
