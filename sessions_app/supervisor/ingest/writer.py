"""Write the journals of all streams into the log: buffer frames, commit batches together, store each cursor.

A batch of lines, the states and events that follow from them, and the new cursor commit in one transaction: after a
crash the same lines arrive again, and the cursor filters out those that count already.
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
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from typing import Any, Final

from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.transaction import on_commit
from django.utils import timezone

from executors_app import crash_points
from executors_app.agentctl.protocol import Code
from executors_app.models import ExecutorRunning
from sessions_app.domain import actor_context
from sessions_app.domain.states import SessionState
from sessions_app.models import Lease, LeaseLost, SessionTransaction, session_transaction, update_rows
from sessions_app.services.database_threads import DatabaseThread
from sessions_app.services.metric_counters import METRICS_BUFFER
from sessions_app.supervisor.continuity import store_reported_token
from sessions_app.supervisor.ingest.folding import OUTPUT_KINDS, CursorFilter, JournalLine, PreparedLines, fold_texts
from sessions_app.supervisor.ingest.handlers import UNSTORABLE, LineApplier

log = logging.getLogger(__name__)


LINE_INDEPENDENT_ERRORS = (LeaseLost, ExecutorRunning.DoesNotExist, OperationalError, InterfaceError, MemoryError)
"""Errors that no single line causes: splitting the batch would not help."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The cursor after a batch, and whether the agent has ended."""

    epoch: str
    seq: int
    agent_gone: bool = False


def ingest_batch(
    session_id: uuid.UUID,
    lease: Lease | None,
    lines: Sequence[JournalLine],
    token: Mapping[str, Any] | None = None,
    *,
    alive: bool = True,
) -> IngestResult:
    """Write a batch of journal lines in one transaction; lines that the cursor has passed change nothing.

    ``token`` is the answer of ``GET /agent/session`` if a line of the batch reports a change of the conversation: the
    journal itself never contains the token (rule 22). ``alive`` is False for lines left by a dead agentctl: it was
    last seen when it wrote them, not now.

    A line that cannot be written is found by halving the batch, and replaced by an event about it. Raises LeaseLost
    and ``LINE_INDEPENDENT_ERRORS``.
    """
    return _ingest(session_id, lease, PreparedLines.of(lines), token, alive=alive)


def _ingest(
    session_id: uuid.UUID,
    lease: Lease | None,
    prepared: PreparedLines,
    token: Mapping[str, Any] | None,
    *,
    alive: bool = True,
) -> IngestResult:
    write, lines = partial(_write, session_id, lease, token=token, alive=alive), prepared.lines
    try:
        return write(prepared)
    except LINE_INDEPENDENT_ERRORS:
        raise
    except Exception as error:
        if not lines:
            raise
        if len(lines) == 1:
            log.warning("session %s: a line of its journal cannot be written", session_id, exc_info=error)
            header = {name: lines[0][name] for name in ("seq", "epoch", "ts")}
            return write(PreparedLines.of([{**header, "kind": UNSTORABLE, "was": lines[0]["kind"]}]))
    half = len(lines) // 2
    first = ingest_batch(session_id, lease, lines[:half], token, alive=alive)
    rest = ingest_batch(session_id, lease, lines[half:], token, alive=alive)
    return IngestResult(rest.epoch, rest.seq, first.agent_gone or rest.agent_gone)


def _write(
    session_id: uuid.UUID,
    lease: Lease | None,
    prepared: PreparedLines,
    *,
    token: Mapping[str, Any] | None,
    alive: bool,
) -> IngestResult:
    """Write the new lines of a batch, what follows from them, and the cursor; all or nothing."""
    with session_transaction(session_id, lease) as transaction:
        execution = transaction.execution
        if execution is None:
            raise ExecutorRunning.DoesNotExist(f"session {session_id} has no execution")
        new_lines = CursorFilter(execution.journal_epoch, execution.journal_seq)
        if prepared.continues(new_lines.epoch, new_lines.seq):
            new_lines.accept_all(prepared.lines)
            folded = prepared.folded
        else:
            folded = fold_texts(new_lines.read(prepared.lines).new)
        _record_gaps(transaction, execution, new_lines)
        applier = LineApplier(transaction, folded)
        for line in folded:
            applier.apply(line)
        applier.finish()
        transaction.at = timezone.now()
        if alive:
            execution.last_seen_at = timezone.now()
        elif new_lines.new:
            execution.last_seen_at = datetime.fromtimestamp(float(new_lines.new[-1]["ts"]), UTC)
        execution.journal_epoch, execution.journal_seq = new_lines.epoch, new_lines.seq
        _save_cursor(transaction, execution, token)
        crash_points.reached("supervisor.ingest_before_commit", session_id)
        on_commit(lambda: crash_points.reached("supervisor.ingest_after_commit", session_id))
    return IngestResult(execution.journal_epoch, execution.journal_seq, applier.agent_gone)


def _record_gaps(transaction: SessionTransaction, execution: ExecutorRunning, new_lines: CursorFilter) -> None:
    """Record gaps and skipped lines, before the events of the lines that follow them."""
    since = execution.last_seen_at
    for reason in new_lines.gaps:
        transaction.record_event("session.journal_gap", reason=reason, since=since.isoformat() if since else None)
    if new_lines.skipped:
        (reason, line), count = new_lines.skipped[0], len(new_lines.skipped)
        log.warning("session %s: %d lines of its journal are passed over: %s", transaction.session.id, count, reason)
        transaction.record_event(
            "session.journal_skipped", reason=reason, count=count, seq=line.get("seq"), kind=line["kind"]
        )


CURSOR_FIELDS = ("journal_epoch", "journal_seq", "last_seen_at", "updated_at")


def _save_cursor(transaction: SessionTransaction, execution: ExecutorRunning, token: Mapping[str, Any] | None) -> None:
    execution.updated_at = timezone.now()
    update_rows(ExecutorRunning, CURSOR_FIELDS, [(*map(partial(getattr, execution), CURSOR_FIELDS), execution.id)])
    if told := store_reported_token(transaction, execution, token):
        execution.save(update_fields=told)


TROUBLE_MESSAGES: Final[Mapping[str, str]] = {
    Code.DISK_FULL: "The disk that keeps what the agent says is full. Make room there: waiting prompts then go out.",
    Code.DISK_FAILING: "The disk that keeps what the agent says cannot be written. The agent waits for it.",
}
_SELF_MOVES: Final = {SessionState.RUNNING: "turn_started", SessionState.WAITING_FOR_INPUT: "ready"}
"""By state, the move that leaves the session in it and only sets its error."""


def show_agentctl_trouble(session_id: uuid.UUID, lease: Lease, trouble: str) -> bool:
    """Write agentctl's trouble as the session's error, or clear it if ``trouble`` is empty. Raises LeaseLost.

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


Lines = list[dict[str, Any]]

MAX_BUFFERED = 2000
"""Lines that may wait, give or take a frame: they are written in 10 to 15 ms, so that other streams get their turn.

When so many wait, the stream is not read any further; agentctl's journal keeps the rest."""


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
"""Seconds at least between two commits, in which other processes can begin to write."""
JOURNAL_CAUSE = "journal"
"""The cause recorded with everything written here: an agent or its agentctl reported it."""
RETRY_AFTER = 1.0
"""Seconds until the next try when the database cannot be written."""
MAX_LINES = 2000
"""Lines of one transaction, give or take a batch: they are written in 10 to 15 ms."""


def _pause_after(taken: float) -> float:
    """Return the seconds until the next commit, after one that took ``taken`` seconds."""
    if connection.vendor == "postgresql":
        return COMMIT_INTERVAL  # others wait for a row of ours at most, and its lock goes to whoever waits first
    # Half of the time is left for the database's other writers: SQLite's lock goes to whoever asks at the right moment.
    return max(COMMIT_INTERVAL, taken)


@dataclass(eq=False)
class Batch:
    """Lines of one stream that wait to be written, and the future with their result."""

    session_id: uuid.UUID
    lease: Lease
    lines: list[dict[str, Any]]
    token: Mapping[str, Any] | None
    arriving: Lines = field(default_factory=list)
    """The stream's lines behind these; what has arrived by then is written with them."""
    result: asyncio.Future[IngestResult] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    prepared: PreparedLines = field(init=False)

    def __post_init__(self) -> None:
        # Here, on the event loop: in the writer's thread it would prolong the transaction.
        self.prepared = PreparedLines.of(self.lines)

    def take_arrived(self) -> None:
        """Add the output that has arrived since the batch was passed, so that it need not wait for another commit."""
        room = max(0, MAX_LINES - len(self.lines))
        more = list(takewhile(_is_output, self.arriving[:room]))
        if more:
            del self.arriving[: len(more)]
            self.lines += more
            self.prepared = PreparedLines.of(self.lines)


def _is_output(line: JournalLine) -> bool:
    """Whether the stream has nothing to do for a line before it is written."""
    return line.get("kind") in OUTPUT_KINDS


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
            started = time.monotonic()
            await self._write(self._next_batches())
            await asyncio.sleep(_pause_after(time.monotonic() - started))

    def _next_batches(self) -> list[Batch]:
        batches: list[Batch] = []
        while self._waiting and sum(len(batch.lines) for batch in batches) < MAX_LINES:
            batches.append(self._waiting.popleft())
            batches[-1].take_arrived()
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
                continue  # its stream was stopped meanwhile
            if isinstance(result, Exception):
                batch.result.set_exception(result)
            else:
                batch.result.set_result(result)
                if batch.lines:
                    METRICS_BUFFER.written(float(batch.lines[0]["ts"]))

    async def _handle_failure(self, batches: Sequence[Batch], error: Exception) -> None:
        """Retry each batch alone, in case one of them is the cause; a batch that fails alone waits and is retried."""
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
    """Write all batches in one transaction, each in a savepoint; return the result or the error of each.

    A database error rolls back and raises for all of them.
    """
    # Sorted by session: everybody who locks several sessions does so in this order, or two could wait for each other.
    with transaction.atomic() if len(batches) > 1 else nullcontext():
        return [(batch, _write_batch(batch)) for batch in sorted(batches, key=lambda batch: batch.session_id)]


def _write_batch(batch: Batch) -> IngestResult | Exception:
    try:
        with actor_context.acting_as(session_id=batch.session_id, execution_id=batch.lease.execution_id):
            return _ingest(batch.session_id, batch.lease, batch.prepared, batch.token)
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:  # noqa: BLE001  (the stream handles it)
        return error
