"""Write the batches of all streams into the log, with pauses for other writers."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from django.db import InterfaceError, OperationalError, connection

from executors_app.wire.protocol import Code
from sessions_app.kernel import actor_context
from sessions_app.kernel.database_threads import DELAY_FACTOR, MAX_DELAY, DatabaseThread, is_too_long
from sessions_app.kernel.locking import LockTimer
from sessions_app.kernel.rules.states import SessionState
from sessions_app.metrics.counters import METRICS_BUFFER
from sessions_app.models import Lease, session_transaction
from sessions_app.stream.ingest.batches import Batch, IngestResult, LineBuffer, Lines, write_batches
from sessions_app.stream.ingest.line_costs import TRANSACTION_BUDGET

log = logging.getLogger(__name__)
COMMIT_INTERVAL = 0.002
"""Minimum seconds between two commits, in which other processes can begin to write."""
JOURNAL_CAUSE = "journal"
"""The cause recorded with everything written here: an agent or its agentctl reported it."""
RETRY_AFTER = 1.0
"""Seconds until the next try when the database cannot be written."""
MINIMUM_SHARE: Final = 16 << 10
"""Bytes that a session may write in a transaction in any case: with less, its fixed cost would be the greater part."""
TROUBLE_MESSAGES: Final[Mapping[str, str]] = {
    Code.DISK_FULL: "The disk that stores the agent's journal is full. Free some space: waiting prompts are then sent.",
    Code.DISK_FAILING: "The disk that stores the agent's journal cannot be written. The agent waits for it.",
}
_SELF_MOVES: Final = {SessionState.RUNNING: "turn_started", SessionState.WAITING_FOR_INPUT: "ready"}
"""By state, the move that leaves the session in it and only sets its error."""


class JournalWriter:
    """Writes batches, several in one transaction; waits while the database is unavailable.

    Each transaction is divided between the sessions that wait, and what does not fit into a session's share waits
    behind the others. A session that exceeded its share, or whose lines the database would not take in time, waits
    alone.
    """

    def __init__(self, thread: DatabaseThread):
        self._thread = thread
        self._waiting: deque[Batch] = deque()
        self._has_news = asyncio.Event()
        self._not_before: dict[uuid.UUID, float] = {}
        """By session, when its next lines are written (monotonic); missing: at once."""
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    async def __call__(
        self,
        session_id: uuid.UUID,
        lease: Lease,
        lines: Lines,
        token: Mapping[str, Any] | None,
        buffer: LineBuffer | None = None,
    ) -> IngestResult:
        """Write one batch and return its result; raises what ``ingest_batch`` raises.

        Output that is in the stream's ``buffer`` when the batch's turn comes is written with it. A stream must not
        pass its next batch before this returns.
        """
        batch = Batch(session_id, lease, list(lines), token, buffer)
        self._waiting.append(batch)
        self._has_news.set()
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
            batches = self._next_batches()
            if not batches:
                await self._wait_until_due()
                continue
            greedy = [batch.session_id for batch in batches if batch.first_cost > batch.share]
            timer = LockTimer()
            began = time.monotonic()
            await self._write(batches, timer)
            await asyncio.sleep(_pause_after(timer.seconds))
            self._delay_greedy(greedy, time.monotonic() - began)

    def _next_batches(self) -> list[Batch]:
        """Take the batches of the next transaction, in the order of their arrival, each with its share of it."""
        chosen, guaranteed = list[Batch](), 0
        for batch in list(self._waiting):
            if batch.result.done():
                self._waiting.remove(batch)  # its stream was stopped meanwhile
                continue
            if self._delay_of(batch.session_id) > 0:
                continue
            if not batch.written:
                batch.take_arrived()
            guaranteed += min(batch.cost, MINIMUM_SHARE)
            if chosen and guaranteed > TRANSACTION_BUDGET:
                break
            chosen.append(batch)
        shares = fair_shares([batch.cost for batch in chosen])
        for batch, share in zip(chosen, shares, strict=True):
            self._waiting.remove(batch)
            batch.take_share(share)
        return chosen

    def _delay_of(self, session_id: uuid.UUID) -> float:
        """Return the seconds until the session's next lines are written."""
        delay = self._not_before.get(session_id, 0.0) - time.monotonic()
        if delay <= 0:
            self._not_before.pop(session_id, None)
        return max(delay, 0.0)

    async def _wait_until_due(self) -> None:
        """Wait until a delay is over, or another batch arrives."""
        self._has_news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min((self._delay_of(batch.session_id) for batch in self._waiting), default=0)):
                await self._has_news.wait()

    def _delay(self, session_id: uuid.UUID, seconds: float) -> None:
        self._not_before[session_id] = time.monotonic() + seconds

    def _delay_greedy(self, sessions: Sequence[uuid.UUID], seconds: float) -> None:
        """Let sessions wait that wrote more than their share, because one line alone exceeded it, as long as it took.

        Whatever others have passed meanwhile is written first. Without others, nobody waits.
        """
        for session_id in sessions:
            if any(batch.session_id != session_id for batch in self._waiting):
                self._delay(session_id, seconds)

    async def _write(self, batches: Sequence[Batch], timer: LockTimer) -> None:
        began = time.monotonic()
        try:
            results = await asyncio.shield(self._thread(write_batches, batches, timer))
        except (OperationalError, InterfaceError) as error:
            await self._handle_failure(batches, error, timer, time.monotonic() - began)
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
                self._take_result(batch, result)

    def _take_result(self, batch: Batch, result: IngestResult) -> None:
        """Finish a batch, or let the rest of its lines wait behind the other sessions."""
        if batch.record_written(result):
            self._waiting.append(batch)
            return
        batch.result.set_result(replace(result, agent_gone=batch.agent_gone, unwritten=0))
        if batch.lines:
            METRICS_BUFFER.written(float(batch.lines[0]["ts"]))

    async def _handle_failure(
        self, batches: Sequence[Batch], error: Exception, timer: LockTimer, seconds: float
    ) -> None:
        """Retry each batch alone, in case one of them is the cause; a batch that fails alone waits and is retried."""
        if len(batches) > 1:
            for batch in batches:
                await self._write([batch], timer)
            return
        (batch,) = batches
        if is_too_long(error):
            # No outage: only this session's lines take too long. The others are written meanwhile.
            METRICS_BUFFER.count("kandev_ingest_delayed_total")
            log.error("session %s: its lines cannot be written in time, trying again: %s", batch.session_id, error)
            self._delay(batch.session_id, min(seconds * DELAY_FACTOR, MAX_DELAY))
        else:
            if not self._failing:
                self._failing = True
                log.error("the database does not accept events, so they stay in the journals: %s", error)
            self._delay(batch.session_id, RETRY_AFTER)
        if not batch.result.done():
            self._waiting.append(batch)


def _pause_after(locked: float) -> float:
    """Return the seconds until the next transaction, after one that locked SQLite for ``locked`` seconds."""
    if connection.vendor == "postgresql":
        return COMMIT_INTERVAL  # others wait for a row of ours at most, and its lock goes to whoever waits first
    # Half of the time is left for the database's other writers: whoever tries while SQLite's lock is free gets it.
    return max(COMMIT_INTERVAL, locked)


def fair_shares(costs: Sequence[int], budget: int = TRANSACTION_BUDGET) -> list[int]:
    """Divide the budget by max-min fairness: whoever wants less than an equal share leaves the rest to the others."""
    shares, left = [0] * len(costs), budget
    by_cost = sorted(range(len(costs)), key=costs.__getitem__)
    for served, number in enumerate(by_cost):
        shares[number] = min(costs[number], left // (len(costs) - served))
        left -= shares[number]
    return shares


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
