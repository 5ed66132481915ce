"""Buffer the frames of all streams, and write them into the log with pauses for other writers."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Final

from django.db import InterfaceError, OperationalError, connection

from executors_app.agentctl.protocol import Code
from sessions_app.domain import actor_context
from sessions_app.domain.states import SessionState
from sessions_app.models import Lease, session_transaction
from sessions_app.models.locking import LockTimer
from sessions_app.services.database_threads import DatabaseThread
from sessions_app.services.metric_counters import METRICS_BUFFER
from sessions_app.supervisor.ingest.batches import MAX_LINES, Batch, IngestResult, Lines, write_batches

log = logging.getLogger(__name__)


TROUBLE_MESSAGES: Final[Mapping[str, str]] = {
    Code.DISK_FULL: "The disk that stores the agent's journal is full. Free some space: waiting prompts are then sent.",
    Code.DISK_FAILING: "The disk that stores the agent's journal cannot be written. The agent waits for it.",
}
_SELF_MOVES: Final = {SessionState.RUNNING: "turn_started", SessionState.WAITING_FOR_INPUT: "ready"}
"""By state, the move that leaves the session in it and only sets its error."""


def show_agentctl_trouble(session_id: uuid.UUID, lease: Lease, trouble: str) -> bool:
    """Write agentctl's disk trouble as the session's error, or clear it if ``trouble`` is empty. Raises LeaseLost.

    Returns False while the agent is starting: the end of the start sets the session's error, so the caller has to try
    again afterwards.
    """
    with session_transaction(session_id, lease) as transaction:
        session = transaction.session
        if trouble and session.state == SessionState.STARTING:
            return False
        stay = _SELF_MOVES.get(SessionState(session.state))
        if stay is None or (not trouble and session.error_code not in TROUBLE_MESSAGES):
            return True
        transaction.move_session(
            stay, error_code=trouble, error_message=TROUBLE_MESSAGES.get(trouble, ""), reason=trouble or "room_again"
        )
    return True


MAX_BUFFERED = 2000
"""Lines that may wait, give or take a frame: they are written in 10 to 15 ms, so that other streams get their turn.

When this many wait, the stream is not read further; agentctl's journal keeps the rest."""


async def buffer_frames(frames: AsyncIterator[Lines], waiting: Lines) -> AsyncGenerator[Lines, None]:
    """Yield all lines that have arrived since the last batch, in order; an error of ``frames`` is raised after them.

    They arrive in ``waiting``. Meanwhile the caller may take lines from its beginning, which then belong to the batch
    that was yielded last.
    """
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


COMMIT_INTERVAL = 0.002
"""Minimum seconds between two commits, in which other processes can begin to write."""
JOURNAL_CAUSE = "journal"
"""The cause recorded with everything written here: an agent or its agentctl reported it."""
RETRY_AFTER = 1.0
"""Seconds until the next try when the database cannot be written."""


def _pause_after(locked: float) -> float:
    """Return the seconds until the next transaction, after one that locked SQLite for ``locked`` seconds."""
    if connection.vendor == "postgresql":
        return COMMIT_INTERVAL  # others wait for a row of ours at most, and its lock goes to whoever waits first
    # Half of the time is left for the database's other writers: whoever tries while SQLite's lock is free gets it.
    return max(COMMIT_INTERVAL, locked)


class JournalWriter:
    """Writes batches in the order they arrive, several in one transaction; waits while the database is unavailable."""

    def __init__(self, thread: DatabaseThread):
        self._thread = thread
        self._waiting: deque[Batch] = deque()
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    async def __call__(
        self,
        session_id: uuid.UUID,
        lease: Lease,
        lines: Lines,
        token: Mapping[str, Any] | None,
        arriving: Lines | None = None,
    ) -> IngestResult:
        """Write one batch and return its result; raises what ``ingest_batch`` raises.

        Output that is in ``arriving`` when the batch's turn comes moves to the end of ``lines`` and is written too. A
        stream must not pass its next batch before this returns.
        """
        batch = Batch(session_id, lease, lines, token, [] if arriving is None else arriving)
        self._waiting.append(batch)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="writer")
        return await batch.result

    async def close(self) -> None:
        """Stop; lines that still wait are in the journals, and the next supervisor reads them there."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        actor_context.begin_context(cause=JOURNAL_CAUSE)  # it writes for all streams, whichever has begun it
        while self._waiting:
            timer = LockTimer()
            await self._write(self._next_batches(), timer)
            await asyncio.sleep(_pause_after(timer.seconds))

    def _next_batches(self) -> list[Batch]:
        batches: list[Batch] = []
        while self._waiting and sum(len(batch.lines) for batch in batches) < MAX_LINES:
            batches.append(self._waiting.popleft())
            batches[-1].take_arrived()
        return batches

    async def _write(self, batches: Sequence[Batch], timer: LockTimer) -> None:
        try:
            results = await asyncio.shield(self._thread(write_batches, batches, timer))
        except (OperationalError, InterfaceError) as error:
            await self._handle_failure(batches, error, timer)
            return
        if self._failing:
            self._failing = False
            log.warning("the database accepts events again")
        for batch, result in results:
            if batch.result.done():
                continue  # its stream was stopped meanwhile
            if isinstance(result, Exception):
                batch.result.set_exception(result)
            else:
                batch.result.set_result(result)
                if batch.lines:
                    METRICS_BUFFER.written(float(batch.lines[0]["ts"]))

    async def _handle_failure(self, batches: Sequence[Batch], error: Exception, timer: LockTimer) -> None:
        """Retry each batch alone, in case one of them is the cause; a batch that fails alone waits and is retried."""
        if len(batches) > 1:
            for batch in batches:
                await self._write([batch], timer)
            return
        if not self._failing:
            self._failing = True
            log.error("the database does not accept events, so they stay in the journals: %s", error)
        await asyncio.sleep(RETRY_AFTER)
        self._waiting.extend(batch for batch in batches if not batch.result.done())
