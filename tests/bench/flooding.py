"""How fast other sessions' lines are written beside a session that floods the writer."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from executors_app.wire.protocol import JournalKind
from sessions_app.kernel.database_threads import DatabaseThread
from sessions_app.kernel.rules.states import SessionState
from sessions_app.models import Lease
from sessions_app.stream.ingest.writer import JournalWriter
from tests.bench.figures import Figure
from tests.bench.ingests import lease_all
from tests.bench.world import World
from tests.support.fake_agentctl import plan_fleet

QUIET_SESSIONS: Final = 8
LIMIT: Final = 12.0
"""Maximum, as a multiple of the time without a flood."""
FLOOD_LINES: Final = 2000
"""Lines that a stream passes at once."""

Line = dict[str, Any]


def _header(seq: int, epoch: str) -> Line:
    return {"seq": seq, "epoch": epoch, "ts": time.time()}


def _big(seq: int) -> Line:
    return {"kind": JournalKind.TOOL_CALL, "tool_call_id": f"call {seq}", "raw_input": "x" * 64_000}


def _many(seq: int) -> Line:
    return {"kind": JournalKind.TOOL_CALL, "tool_call_id": f"call {seq}", "status": "completed"}


def _expensive(seq: int) -> Line:
    body = {"raw_input": "x" * 100_000} if seq == 1 else {}
    return {"kind": JournalKind.TOOL_UPDATE, "tool_call_id": "call", "status": "in_progress", **body}


FLOODS: Final[dict[str, Callable[[int], Line]]] = {"big": _big, "many": _many, "expensive": _expensive}


def beside_a_flood(world: World, seconds: float, *, limited: bool) -> Iterator[Figure]:
    """Measure the writes per second of eight sessions that write a line at a time, beside each kind of flood."""
    for name, flood in FLOODS.items():
        world.fill(plan_fleet(QUIET_SESSIONS + 1, "127.4.0.1", 9), state=SessionState.RUNNING)
        alone, beside = asyncio.run(_measure(flood, seconds))
        yield Figure(
            f"writes of {QUIET_SESSIONS} sessions beside a flood of {name} lines",
            seconds / max(beside, 1),
            "without the flood",
            seconds / max(alone, 1),
            unit="writes/s",
            count=1,
            limit=LIMIT if limited else None,
        )


async def _measure(flood: Callable[[int], Line], seconds: float) -> tuple[int, int]:
    """Return the number of writes without and with the flood."""
    thread = DatabaseThread("ingest")
    writer = JournalWriter(thread)
    (flooding, *quiet) = await thread(lease_all)
    try:
        alone = await _count_writes(writer, quiet, seconds, "alone")
        task = asyncio.create_task(_flood(writer, *flooding, flood))
        await asyncio.sleep(0)
        beside = await _count_writes(writer, quiet, seconds, "beside")
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return alone, beside
    finally:
        await writer.close()
        thread.close()


async def _flood(writer: JournalWriter, session_id: uuid.UUID, lease: Lease, flood: Callable[[int], Line]) -> None:
    for start in itertools.count(1, FLOOD_LINES):
        lines = [{**_header(seq, "flood"), **flood(seq)} for seq in range(start, start + FLOOD_LINES)]
        await writer(session_id, lease, lines, None)


async def _count_writes(
    writer: JournalWriter, sessions: list[tuple[uuid.UUID, Lease]], seconds: float, epoch: str
) -> int:
    deadline, written = time.monotonic() + seconds, 0

    async def write(session_id: uuid.UUID, lease: Lease) -> None:
        nonlocal written
        for seq in itertools.count(1):
            line = {**_header(seq, epoch), "kind": JournalKind.MESSAGE_AGENT, "text": "a few words of an agent "}
            await writer(session_id, lease, [line], None)
            if time.monotonic() > deadline:
                return
            written += 1

    await asyncio.gather(*(write(*session) for session in sessions))
    return written
