"""Journal lines into the database beside a bare ``executemany`` of as many rows."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Iterator, Sequence

from executors_app.agentctl.protocol import Kind
from executors_app.stand_in import plan
from sessions_app.models import TaskSession
from sessions_app.supervisor.ingest.batches import ingest
from sessions_app.supervisor.ingest.fold import Line
from sessions_app.supervisor.threads import DatabaseThread
from tests.bench.bare import BareTable
from tests.bench.figures import Figure, in_turn
from tests.bench.world import World

TOOL_EVERY = 20


def batches(world: World, sessions: int, size: int, rounds: int) -> Figure:
    """Events a second: one batch of ``size`` lines for each of ``sessions`` sessions."""
    world.fill(plan(sessions, "127.4.0.1", 9))
    ids = list(TaskSession.objects.values_list("id", flat=True))
    seconds, floor = asyncio.run(_beside_inserts(world, ids, size, rounds))
    row = f"ingest, {sessions} x {size} lines"
    return Figure(row, seconds, "bare executemany", floor, unit="events/s", count=sessions * size)


async def _beside_inserts(world: World, ids: Sequence[uuid.UUID], size: int, rounds: int) -> list[float]:
    writer, lines = DatabaseThread("ingest"), _lines()
    table = BareTable(world.home / f"ingest-{len(ids)}x{size}.sqlite3")
    batch: list[Line] = []

    def ingest_all() -> None:
        for session_id in ids:
            ingest(session_id, None, batch)

    def insert_all() -> None:
        for _ in ids:
            table.insert(size)

    taken = []
    try:
        for _ in range(rounds):
            batch[:] = itertools.islice(lines, size)
            taken.append(await in_turn(1, lambda: writer(ingest_all), insert_all))
    finally:
        writer.close()
        table.close()
    return [min(each)[0] for each in zip(*taken, strict=True)]


def _lines() -> Iterator[Line]:
    """What an agent says without an end; each 20th line is a tool call, after which a new message begins."""
    for seq in itertools.count(1):
        line = {"seq": seq, "epoch": "bench", "ts": time.time()}
        if seq % TOOL_EVERY == 0:
            tool = {"tool_call_id": f"call {seq}", "title": "Look", "tool_kind": "read", "status": "completed"}
            yield {**line, "kind": Kind.TOOL_CALL, **tool}
        else:
            yield {**line, "kind": Kind.MESSAGE_AGENT, "text": "a few words of an agent "}
