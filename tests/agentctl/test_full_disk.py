"""A disk that fills up during a turn: the turn fails with a reason, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from executors_app.agentctl import journal as journals
from executors_app.agentctl.http.event_streams import FRAME_BYTES
from executors_app.agentctl.state_files import write_all
from executors_app.wire.protocol import JournalKind
from tests.agentctl.running import Running, agentctl
from tests.waiting import PATIENCE, eventually_async


class Disk:
    """A fake disk with ``room`` bytes left; a write that does not fit is written in part, as on tmpfs."""

    def __init__(self) -> None:
        self.room: float = float("inf")

    def write_all(self, fd: int, data: bytes, offset: int) -> int:
        if len(data) > self.room:
            write_all(fd, data[: int(self.room)], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(data)
        return write_all(fd, data, offset)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk()
    monkeypatch.setattr(journals, "write_all", made.write_all)
    yield made
    made.room = float("inf")


async def _notices(running: Running, notices: list[dict[str, Any]]) -> None:
    async with running.events() as socket:
        async for message in socket:
            lines = [orjson.loads(raw) for raw in message.data.split("\n")]
            notices += [line for line in lines if "kind" not in line]


@contextlib.asynccontextmanager
async def _listening(running: Running) -> Any:
    lines: list[dict[str, Any]] = []
    listener = asyncio.create_task(_notices(running, lines))
    try:
        yield lines
    finally:
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)


async def test_turn_on_a_full_disk_fails_and_the_next_one_works(tmp_path: Path, disk: Disk) -> None:
    async with agentctl(tmp_path) as running, _listening(running) as lines:
        await running.start()
        assert await running.prompt("hang") == (202, {"accepted": True, "duplicate": False})
        await running.line(JournalKind.PROMPT_DELIVERED)
        disk.room = 10
        running.agent.driver.host.record(JournalKind.MESSAGE_AGENT, text="what did not fit")
        await eventually_async(lambda: lines, describe="the consumer is told of the full disk")
        assert lines == [{"type": "journal", "trouble": "disk_full"}]
        assert (await running.get("/status"))["journal"]["trouble"] == "disk_full"
        status, answer = await running.prompt("more", "m2")
        assert (status, answer["code"]) in [(503, "journal_full"), (409, "busy")]
        await asyncio.wait_for(running.agent.driver.cancelled.wait(), PATIENCE)

        disk.room = float("inf")

        failed = await running.line(JournalKind.TURN_FAILED)
        assert (failed["message_id"], failed["code"]) == ("m1", "disk_full")
        await eventually_async(
            lambda: lines[1:] == [{"type": "journal", "trouble": ""}],
            describe="the consumer is told that the disk has room again",
        )
        assert "trouble" not in (await running.get("/status"))["journal"]
        await running.reaches("idle")
        assert (await running.prompt("hello", "m2"))[0] == 202
        await running.line(JournalKind.TURN_COMPLETED)
        kinds = [kind for kind in running.kinds() if kind.startswith(("turn.", "message.", "prompt."))]
        assert kinds == [
            *("prompt.accepted", "prompt.delivered", "message.agent", "turn.failed"),
            *("prompt.accepted", "prompt.delivered", "message.agent", "turn.completed"),
        ]
        assert [line["seq"] for line in running.lines()] == list(range(1, len(running.lines()) + 1))


async def test_acknowledging_lines_frees_a_disk_filled_by_the_journal(tmp_path: Path, disk: Disk) -> None:
    async with agentctl(tmp_path) as running:
        await running.start()
        journal = running.sidecar.journal
        for _ in range(5):
            await journal.wait_until_durable(journal.append(JournalKind.LOG, text="x" * FRAME_BYTES))
        journal.ack(journal.last_seq)
        first = journal.first_seq
        disk.room = 10
        journal.append(JournalKind.LOG, text="y")
        await eventually_async(lambda: journal.first_seq > first, describe="acknowledged lines have been deleted")
        disk.room = float("inf")
        await asyncio.wait_for(journal.wait_until_durable(journal.last_seq), PATIENCE)
        assert [line["seq"] for line in running.lines()][-1] == journal.last_seq
