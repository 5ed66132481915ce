"""Journal lines into the database beside a bare ``executemany`` of as many rows."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from typing import Any

from django.db import connections

from executors_app.agentctl.protocol import Kind
from executors_app.models import ExecutorRunning
from executors_app.stand_in import plan
from sessions_app.models import TaskSession
from sessions_app.supervisor.ingest import ingest
from tests.bench.bare import BareTable
from tests.bench.figures import Figure, best_in_turn
from tests.bench.world import World

TOOL_EVERY = 20


def batches(world: World, sessions: int, size: int, rounds: int) -> Figure:
    """Events a second: one batch of ``size`` lines for each of ``sessions`` sessions."""
    world.fill(plan(sessions, "127.4.0.1", 9))
    ids = list(TaskSession.objects.values_list("id", flat=True))
    ExecutorRunning.objects.update(journal_epoch="bench")
    table, lines = BareTable(world.home / f"ingest-{sessions}x{size}.sqlite3"), _lines()
    ready: list[list[dict[str, Any]]] = []

    def prepare() -> None:
        ready.append(list(itertools.islice(lines, size)))

    def ours() -> None:
        for session_id in ids:
            ingest(session_id, None, ready[-1])

    def bare() -> None:
        for _ in ids:
            table.insert(size)

    try:
        _, seconds, floor = asyncio.run(_in_thread(rounds, prepare, ours, bare))
    finally:
        table.close()
    row = f"ingest, {sessions} x {size} lines"
    return Figure(row, seconds, "bare executemany", floor, unit="events/s", count=sessions * size)


async def _in_thread(rounds: int, *runs: Any) -> list[float]:
    """Django refuses its ORM on the loop's own thread."""

    def off_the_loop(run: Any) -> Any:
        return lambda: asyncio.to_thread(_closing, run)

    return await best_in_turn(rounds, *map(off_the_loop, runs))


def _lines() -> Iterator[dict[str, Any]]:
    """What an agent says without an end; each 20th line is a tool call, after which a new message begins."""
    for seq in itertools.count(1):
        line = {"seq": seq, "epoch": "bench", "ts": time.time()}
        if seq % TOOL_EVERY == 0:
            tool = {"tool_call_id": f"call {seq}", "title": "Look", "tool_kind": "read", "status": "completed"}
            yield {**line, "kind": Kind.TOOL_CALL, **tool}
        else:
            yield {**line, "kind": Kind.MESSAGE_AGENT, "text": "a few words of an agent "}
