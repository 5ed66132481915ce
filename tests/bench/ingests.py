"""Writing journal lines into the database, beside ``executemany`` and ``bulk_create`` of as many rows."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Iterator
from typing import Any

from django.db import transaction
from django.utils import timezone

from executors_app.models import ExecutorRunning
from executors_app.wire.protocol import JournalKind
from sessions_app.kernel.database_threads import DatabaseThread
from sessions_app.kernel.locking import LockTimer
from sessions_app.kernel.rules.states import SessionState
from sessions_app.models import Lease, SessionEvent
from sessions_app.stream.ingest.batches import Batch, write_batches
from sessions_app.supervisor import leases
from tests.bench.bare import BareTable
from tests.bench.figures import Figure, in_turn
from tests.bench.world import World
from tests.support.fake_agentctl import plan_fleet

TOOL_EVERY = 20
CREATED_FROM = 10**9
"""First number of the rows that ``bulk_create`` writes, far beyond ours."""
PAYLOAD = {"message_id": "0" * 32, "append": "a few words of an agent ", "complete": False}
LIMIT = 2.0
"""Maximum, as a multiple of the time of a ``bulk_create``."""


def batches(world: World, sessions: int, size: int, rounds: int, *, limited: bool) -> list[Figure]:
    """Measure events per second: one batch of ``size`` lines for each of ``sessions`` sessions in one transaction."""
    fleet = plan_fleet(sessions, "127.4.0.1", 9)
    world.fill(fleet, state=SessionState.RUNNING)
    seconds, floor, bulk = asyncio.run(_beside_inserts(world, sessions, size, rounds))
    row, count, limit = f"ingest, {sessions} x {size} lines", sessions * size, LIMIT if limited else None
    return [
        Figure(row, seconds, "bare executemany", floor, unit="events/s", count=count),
        Figure(row, seconds, "bare bulk_create of an event each", bulk, unit="events/s", count=count, limit=limit),
    ]


async def _beside_inserts(world: World, sessions: int, size: int, rounds: int) -> list[float]:
    writer, lines = DatabaseThread("ingest"), endless_lines()
    table = BareTable(world.home / f"ingest-{sessions}x{size}.sqlite3")
    held = await writer(lease_all)
    batch: list[dict[str, Any]] = []

    async def ingest_all() -> None:
        done = await writer(
            write_batches, [Batch(session_id, lease, batch, None) for session_id, lease in held], LockTimer()
        )
        assert not [result for _, result in done if isinstance(result, Exception)]

    def insert_all() -> None:
        table.insert(size * sessions)

    def create_all() -> None:
        first = CREATED_FROM + batch[0]["seq"]
        events = [
            SessionEvent(session_id=session_id, seq=first + number, name="bench", payload=PAYLOAD, at=timezone.now())
            for session_id, _ in held
            for number in range(size)
        ]
        with transaction.atomic():
            SessionEvent.objects.bulk_create(events, batch_size=500)

    taken = []
    try:
        for _ in range(rounds):
            batch[:] = itertools.islice(lines, size)
            taken.append(await in_turn(1, ingest_all, insert_all, lambda: writer(create_all)))
    finally:
        writer.close()
        table.close()
    return [min(each)[0] for each in zip(*taken, strict=True)]


def lease_all() -> list[tuple[uuid.UUID, Lease]]:
    """Acquire a lease on every execution; return (session id, lease)."""
    held: list[tuple[uuid.UUID, Lease]] = []
    for execution_id, session_id in ExecutorRunning.objects.values_list("id", "session_id"):
        lease = leases.acquire_lease(execution_id, "bench")
        assert lease is not None
        held.append((session_id, lease))
    return held


def endless_lines() -> Iterator[dict[str, Any]]:
    """Yield endless output of an agent; each 20th line is a tool call, after which a new message begins."""
    for seq in itertools.count(1):
        line = {"seq": seq, "epoch": "bench", "ts": time.time()}
        if seq % TOOL_EVERY == 0:
            tool = {"tool_call_id": f"call {seq}", "title": "Look", "tool_kind": "read", "status": "completed"}
            yield {**line, "kind": JournalKind.TOOL_CALL, **tool}
        else:
            yield {**line, "kind": JournalKind.MESSAGE_AGENT, "text": "a few words of an agent "}
