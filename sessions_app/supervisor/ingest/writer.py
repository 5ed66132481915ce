"""The single writer of ingest.

Buffer the frames of each stream, and commit what all streams have brought together.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from django.db import InterfaceError, OperationalError, transaction

from sessions_app.domain import actor_context
from sessions_app.models import Lease
from sessions_app.services.database_threads import DatabaseThread
from sessions_app.services.metric_counters import METRICS_BUFFER
from sessions_app.supervisor.ingest.batches import IngestResult, ingest_batch
from sessions_app.supervisor.ingest.handlers import JournalLine

Lines = list[dict[str, Any]]

MAX_BUFFERED = 2000
"""Lines that may wait, give or take a frame: what is written in 10 to 15 ms, so that others get their turn.

Behind them the stream is not read; agentctl's journal holds the rest."""


async def buffer_frames(frames: AsyncIterator[Lines]) -> AsyncGenerator[Lines, None]:
    """Whatever has come since the last batch, in order; raises what ``frames`` raises, after all that came before."""
    waiting: Lines = []
    news, room = asyncio.Event(), asyncio.Event()
    reader = asyncio.create_task(_read_frames(frames, waiting, news, room))
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


async def _read_frames(frames: AsyncIterator[Lines], waiting: Lines, news: asyncio.Event, room: asyncio.Event) -> None:
    async for frame in frames:
        waiting.extend(frame)
        news.set()
        if len(waiting) >= MAX_BUFFERED:
            room.clear()
            await room.wait()


log = logging.getLogger(__name__)
COMMIT_INTERVAL = 0.01
"""Seconds at least between two commits."""
JOURNAL_CAUSE = "journal"
"""The cause of what is written here: an agent or its agentctl has said so."""
RETRY_AFTER = 1.0
"""Seconds until a database that takes nothing is tried again."""
MAX_LINES = 2000
"""Of one transaction, give or take a batch: what is written in 10 to 15 ms."""


@dataclass(eq=False)
class Batch:
    """Lines of one stream, on their way."""

    session_id: uuid.UUID
    lease: Lease
    lines: Sequence[JournalLine]
    token: Mapping[str, Any] | None
    result: asyncio.Future[IngestResult] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class JournalWriter:
    """Writes batches in the order they come; a database that is full or away is waited for."""

    def __init__(self, thread: DatabaseThread):
        self._thread = thread
        self._waiting: deque[Batch] = deque()
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    async def __call__(
        self, session_id: uuid.UUID, lease: Lease, lines: Sequence[JournalLine], token: Mapping[str, Any] | None
    ) -> IngestResult:
        """Write a batch of one stream, which gives its next one after that; raises what ``ingest`` raises."""
        batch = Batch(session_id, lease, lines, token)
        self._waiting.append(batch)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="writer")
        return await batch.result

    async def close(self) -> None:
        """Finish the commit under way; what still waits is in the journals."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        actor_context.begin_context(cause=JOURNAL_CAUSE)  # it writes for all streams, whichever has begun it
        while self._waiting:
            started = time.monotonic()
            await self._write(self._next_batches())
            await asyncio.sleep(max(COMMIT_INTERVAL, time.monotonic() - started))

    def _next_batches(self) -> list[Batch]:
        batches = [self._waiting.popleft()]
        while self._waiting and sum(len(batch.lines) for batch in batches) < MAX_LINES:
            batches.append(self._waiting.popleft())
        return batches

    async def _write(self, batches: Sequence[Batch]) -> None:
        try:
            results = await asyncio.shield(self._thread(write_batches, batches))
        except (OperationalError, InterfaceError) as error:
            await self._handle_failure(batches, error)
            return
        if self._failing:
            self._failing = False
            log.warning("the database takes events again")
        for batch, result in results:
            if batch.result.done():
                continue  # its stream has ended meanwhile
            if isinstance(result, Exception):
                batch.result.set_exception(result)
            else:
                batch.result.set_result(result)
                if batch.lines:
                    METRICS_BUFFER.written(float(batch.lines[0]["ts"]))

    async def _handle_failure(self, batches: Sequence[Batch], error: Exception) -> None:
        """Where one of several is to blame the others must not wait for it; otherwise all are tried again."""
        if len(batches) > 1:
            for batch in batches:
                await self._write([batch])
            return
        if not self._failing:
            self._failing = True
            log.error("the database takes no events, the journals keep them: %s", error)
        await asyncio.sleep(RETRY_AFTER)
        self._waiting.extend(batch for batch in batches if not batch.result.done())


def write_batches(batches: Sequence[Batch]) -> list[tuple[Batch, IngestResult | Exception]]:
    """One transaction for all; a batch that fails is taken back alone, a database that fails takes back all."""
    with transaction.atomic() if len(batches) > 1 else nullcontext():
        return [(batch, _write_batch(batch)) for batch in sorted(batches, key=lambda batch: batch.session_id)]


def _write_batch(batch: Batch) -> IngestResult | Exception:
    try:
        with actor_context.acting_as(session_id=batch.session_id, execution_id=batch.lease.execution_id):
            return ingest_batch(batch.session_id, batch.lease, batch.lines, batch.token)
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:  # noqa: BLE001  (it is the stream's to say)
        return error
