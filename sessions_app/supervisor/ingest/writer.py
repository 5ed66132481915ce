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
from itertools import zip_longest
from typing import Any, Final

from django.db import InterfaceError, OperationalError, transaction
from django.db.transaction import on_commit
from django.utils import timezone

from executors_app import crash_points
from executors_app.agentctl.journal.line_format import UNREADABLE
from executors_app.agentctl.protocol import Code
from executors_app.models import ExecutorRunning
from sessions_app.domain import actor_context
from sessions_app.domain.states import SessionState
from sessions_app.models import Lease, LeaseLost, SessionTransaction, session_transaction, update_rows
from sessions_app.services.database_threads import DatabaseThread
from sessions_app.services.metric_counters import METRICS_BUFFER
from sessions_app.supervisor.continuity import store_reported_token
from sessions_app.supervisor.ingest.handlers import UNSTORABLE, JournalLine, LineApplier

log = logging.getLogger(__name__)
RawLine = Mapping[str, Any]


@dataclass
class CursorFilter:
    """A cursor, and what the lines behind it came to."""

    epoch: str
    seq: int
    new: list[RawLine] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    """``new_epoch`` or ``lines_missing``: something may be lost before a line (rule 20)."""
    skipped: list[tuple[str, RawLine]] = field(default_factory=list)
    """Reason and line: ``unreadable`` or ``out_of_order``."""

    def read(self, lines: Sequence[RawLine]) -> CursorFilter:
        """Read a batch; the cursor is then behind its last good line."""
        for line, following in zip_longest(lines, lines[1:]):
            if line["kind"] == UNREADABLE:
                self.skipped.append((UNREADABLE, line))
            elif self._is_known(line):
                if self.new:
                    self.skipped.append(("out_of_order", line))
            elif following is not None and self._is_out_of_order(line, following):
                self.skipped.append(("out_of_order", line))
            else:
                self._accept(line)
        return self

    def _is_known(self, line: RawLine) -> bool:
        return bool(line["epoch"] == self.epoch and line["seq"] <= self.seq)

    def _is_out_of_order(self, line: RawLine, following: RawLine) -> bool:
        """The next line is new, and yet not behind this one."""
        continues = following["kind"] != UNREADABLE and following["epoch"] == self.epoch and following["seq"] > self.seq
        return bool(continues and not (line["epoch"] == self.epoch and line["seq"] < following["seq"]))

    def _accept(self, line: RawLine) -> None:
        if self.epoch and line["epoch"] != self.epoch:
            self.gaps.append("new_epoch")  # what it hides is said with that; a first epoch that begins late has a hole
        elif line["seq"] > self.seq + 1:
            self.gaps.append("lines_missing")
        self.epoch, self.seq = line["epoch"], line["seq"]
        self.new.append(line)


LINE_INDEPENDENT_ERRORS = (LeaseLost, ExecutorRunning.DoesNotExist, OperationalError, InterfaceError, MemoryError)
"""What fails a batch whatever its lines are."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """Where the log stands after a batch."""

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
    """Write a batch of journal lines; raises LeaseLost. What is behind the cursor already changes nothing.

    ``token`` is the answer of ``GET /agent/session``, where a line of the batch tells of a change (rule 22).
    ``alive`` is False for what a dead agentctl has left: it was seen when it wrote, not now.
    A line that cannot be written is passed over, and the log says so: the others count.
    """
    write = partial(_write, session_id, lease, token=token, alive=alive)
    try:
        return write(lines)
    except LINE_INDEPENDENT_ERRORS:
        raise
    except Exception as error:
        if not lines:
            raise
        if len(lines) == 1:
            log.warning("session %s: a line of its journal cannot be written", session_id, exc_info=error)
            header = {name: lines[0][name] for name in ("seq", "epoch", "ts")}
            return write([{**header, "kind": UNSTORABLE, "was": lines[0]["kind"]}])
    half = len(lines) // 2
    first = ingest_batch(session_id, lease, lines[:half], token, alive=alive)
    rest = ingest_batch(session_id, lease, lines[half:], token, alive=alive)
    return IngestResult(rest.epoch, rest.seq, first.agent_gone or rest.agent_gone)


def _write(
    session_id: uuid.UUID,
    lease: Lease | None,
    lines: Sequence[JournalLine],
    *,
    token: Mapping[str, Any] | None,
    alive: bool,
) -> IngestResult:
    with session_transaction(session_id, lease) as transaction:
        execution = transaction.execution
        if execution is None:
            raise ExecutorRunning.DoesNotExist(f"session {session_id} has no execution")
        new_lines = CursorFilter(execution.journal_epoch, execution.journal_seq).read(lines)
        _record_gaps(transaction, execution, new_lines)
        applier = LineApplier(transaction, new_lines.new)
        for line in new_lines.new:
            applier.apply(line)
        applier.conversation.schedule_write()
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
    """Gaps and lines that were passed over, before anything else (rule 20)."""
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
"""Moves that lead to where the session is."""


def show_agentctl_trouble(session_id: uuid.UUID, lease: Lease, trouble: str) -> bool:
    """Show an agentctl's trouble, or (empty) that it is over. Raises LeaseLost.

    Returns False while the agent is starting: the end of the start says what the session's error is, so the caller
    has to try again after it.
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
