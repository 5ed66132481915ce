"""Batches of journal lines: read ahead, and written into the log.

A batch of lines, the states and events that follow from them, and the new cursor commit in one transaction: after a
crash the same lines arrive again, and the cursor filters out those that count already. ``folding`` prepares the lines,
``line_costs`` says how many fit into a transaction, and ``output_quota`` which of them are stored.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice, takewhile, zip_longest
from operator import attrgetter
from typing import Any

from django.db import InterfaceError, OperationalError, transaction
from django.db.transaction import on_commit
from django.utils import timezone

from executors_app.machine import crash_points
from executors_app.models import ExecutorRunning
from executors_app.wire.line_format import UNREADABLE
from sessions_app.journal import UNSTORABLE, LineApplier
from sessions_app.kernel import actor_context
from sessions_app.kernel.database_threads import is_too_long
from sessions_app.kernel.locking import LockTimer, lock_on_first_write
from sessions_app.kernel.rules.states import WorkState
from sessions_app.metrics.models import count_in_transaction
from sessions_app.models import (
    Lease,
    LeaseLost,
    MessageDraft,
    SessionTransaction,
    session_transaction,
    session_transactions,
    unfinished_messages,
    update_rows,
)
from sessions_app.recovery.continuity import store_reported_token
from sessions_app.stream.conversation import (
    OUTPUT_ONLY_KINDS,
    JournalLine,
    schedule_writes,
)
from sessions_app.stream.events.journal import JournalGap, JournalSkipped
from sessions_app.stream.ingest.folding import PreparedLines, fold_texts
from sessions_app.stream.ingest.line_costs import TRANSACTION_BUDGET, line_cost, written_sizes
from sessions_app.stream.ingest.output_quota import QUOTA_FIELDS, OutputQuota
from sessions_app.stream.services import SESSION
from sessions_app.turns.models import attach_session, newest_runs

log = logging.getLogger(__name__)
Lines = list[dict[str, Any]]
LINE_INDEPENDENT_ERRORS = (LeaseLost, ExecutorRunning.DoesNotExist, OperationalError, InterfaceError, MemoryError)
"""Errors that no single line causes: splitting the batch would not help."""
MAX_LINES = 2000
"""Lines that a stream passes at once, give or take a frame."""
MAX_BUFFERED = 2000
"""Lines that may wait, give or take a frame: they are written in 10 to 15 ms, so that other streams get their turn.

When this many wait, the stream is not read further; agentctl's journal keeps the rest."""
MAX_BUFFERED_BYTES = 4 << 20
"""Bytes that may wait, give or take a frame; a frame has 64 KiB, or one line that is longer."""
CURSOR_FIELDS = ("journal_epoch", "journal_seq", "last_seen_at", "updated_at", *QUOTA_FIELDS)


class LineBuffer:
    """The lines of one stream that have arrived and that nobody has taken yet, in order.

    The stream takes them as batches. While a batch waits for its transaction, the writer takes the output that has
    arrived meanwhile, which then belongs to that batch.
    """

    def __init__(self, frames: AsyncIterator[Lines], frame_size: Callable[[], int] = lambda: 0):
        """``frame_size`` returns the bytes of the frame that has just been read."""
        self._frames, self._frame_size = frames, frame_size
        self._lines: Lines = []
        self._has_news, self._has_room = asyncio.Event(), asyncio.Event()

    async def batches(self) -> AsyncGenerator[Lines, None]:
        """Yield all lines that have arrived since the last batch; an error of the frames is raised after them."""
        reader = asyncio.create_task(self._read_frames())
        reader.add_done_callback(lambda _: self._has_news.set())
        try:
            while self._lines or not reader.done():
                await self._has_news.wait()
                self._has_news.clear()
                lines = self._take(len(self._lines))
                self._has_room.set()
                if lines:
                    yield lines
            await reader
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    def take_output(self, limit: int) -> Lines:
        """Take the output of the agent that comes next, up to any other line and at most ``limit`` lines."""
        output = list(takewhile(lambda line: line.get("kind") in OUTPUT_ONLY_KINDS, self._lines[:limit]))
        return self._take(len(output))

    def _take(self, count: int) -> Lines:
        taken = self._lines[:count]
        del self._lines[:count]
        return taken

    async def _read_frames(self) -> None:
        buffered = 0
        async for frame in self._frames:
            if not self._lines:
                buffered = 0
            self._lines.extend(frame)
            buffered += self._frame_size()
            self._has_news.set()
            if len(self._lines) >= MAX_BUFFERED or buffered >= MAX_BUFFERED_BYTES:
                self._has_room.clear()
                await self._has_room.wait()
                buffered = 0


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The cursor after a batch, and whether the agent has ended."""

    epoch: str
    seq: int
    agent_gone: bool = False
    unwritten: int = 0
    """Lines at the end of the batch that are left for another transaction, because they would cost too much in one."""


@dataclass(eq=False)
class Batch:
    """Lines of one stream that wait to be written, and the future with their result.

    A transaction writes only as many of them as fit into the session's share (``take_share``); ``written`` counts
    those of earlier transactions.
    """

    session_id: uuid.UUID
    lease: Lease
    lines: list[dict[str, Any]]
    token: Mapping[str, Any] | None
    buffer: LineBuffer | None = None
    """The stream's lines behind these; output that has arrived by then is written with them."""
    result: asyncio.Future[IngestResult] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    prepared: PreparedLines = field(init=False)
    """The lines of the next transaction."""
    share: int = TRANSACTION_BUDGET
    """Bytes that these may write; more only for the first line."""
    written: int = 0
    agent_gone: bool = False
    """Whether a line that is written reported that the agent has ended."""
    _costs: list[int] = field(init=False)

    def __post_init__(self) -> None:
        # Here, on the event loop: in the writer's thread it would prolong the transaction.
        self._costs = [line_cost(line) for line in self.lines]
        self.prepared = PreparedLines.of(self.lines[:])

    @property
    def is_output(self) -> bool:
        """Whether all lines of the next transaction only report output of the agent."""
        return OUTPUT_ONLY_KINDS.issuperset(line.get("kind") for line in self.prepared.lines)

    @property
    def cost(self) -> int:
        """Bytes that the unwritten lines count for."""
        return sum(islice(self._costs, self.written, None))

    @property
    def first_cost(self) -> int:
        """Bytes that the first line of the next transaction counts for."""
        if self.written < len(self._costs):
            return self._costs[self.written]
        return 0

    def take_arrived(self) -> None:
        """Add the output that has arrived since the batch was passed, so that it need not wait for another commit."""
        if self.buffer is None:
            return
        arrived = self.buffer.take_output(max(0, MAX_LINES - len(self.lines)))
        self.lines += arrived
        self._costs += [line_cost(line) for line in arrived]

    def take_share(self, share: int) -> None:
        """Prepare the next lines of at most ``share`` bytes, but at least one line."""
        self.share, end, left = share, self.written, share
        while end < len(self.lines) and (end == self.written or self._costs[end] <= left):
            left -= self._costs[end]
            end += 1
        chosen = self.lines[self.written : end]
        if chosen != list(self.prepared.lines):
            self.prepared = PreparedLines.of(chosen)

    def record_written(self, result: IngestResult) -> bool:
        """Record what a transaction wrote; return whether lines are left."""
        self.written += len(self.prepared.lines) - result.unwritten
        self.agent_gone = self.agent_gone or result.agent_gone
        return self.written < len(self.lines)


Written = list[tuple[Batch, IngestResult | Exception]]


def write_batches(batches: Sequence[Batch], timer: LockTimer) -> Written:
    """Write all batches in one transaction and return the result or the error of each.

    Normally all lines are applied first and then written together. If that fails, because of a line, a lease, or
    because another process has written meanwhile, each batch is applied and written in its own savepoint, and a
    database error rolls back and raises for all of them. ``timer`` gets the time for which SQLite was locked.
    """
    # Sorted by session: all code that locks several sessions uses this order, or two could wait for each other.
    batches = sorted(batches, key=lambda batch: batch.session_id)
    with timer.measure():
        try:
            return _write_together(batches)
        except Exception as error:
            if is_too_long(error):
                raise  # one of them takes too long: the caller tries each in a transaction of its own
            log.debug("%d batches are written one by one: %s", len(batches), error)
        with transaction.atomic() if len(batches) > 1 else nullcontext():
            return [(batch, _write_batch(batch)) for batch in batches]


def _write_together(batches: Sequence[Batch]) -> Written:
    """Apply all lines before anything is written. Raises whatever any batch raises, LeaseLost too."""
    with lock_on_first_write(), _lock_sessions(batches) as transactions:
        unfinished = unfinished_messages(transactions)
        applied = [
            _apply_batch(transactions[batch.session_id], batch, unfinished[batch.session_id]) for batch in batches
        ]
        return list(zip(batches, _write_all(applied), strict=True))


@contextmanager
def _lock_sessions(batches: Sequence[Batch]) -> Iterator[Mapping[uuid.UUID, SessionTransaction]]:
    if len(batches) == 1:  # the usual case, with queries that are compiled once
        with session_transaction(batches[0].session_id, batches[0].lease) as only:
            yield {batches[0].session_id: only}
        return
    leases = {batch.session_id: batch.lease for batch in batches}
    with session_transactions(leases, only_for_output=all(batch.is_output for batch in batches)) as several:
        if len(several) < len(batches):
            raise LeaseLost("One of the sessions belongs to another supervisor, or has two streams.")
        _read_newest_runs(several)
        yield several


def _read_newest_runs(transactions: Mapping[uuid.UUID, SessionTransaction]) -> None:
    """Read the last turns of idle sessions together: output of an idle agent may be work outside its turns."""
    idle = [key for key, transaction in transactions.items() if transaction.session.work_state == WorkState.IDLE]
    if not idle:
        return
    runs = newest_runs(idle)
    for key in idle:
        transaction = transactions[key]
        transaction.newest_run = attach_session(transaction.session, runs.get(key))


def _apply_batch(transaction: SessionTransaction, batch: Batch, unfinished: Sequence[MessageDraft]) -> _AppliedLines:
    with actor_context.acting_as(session_id=batch.session_id, execution_id=batch.lease.execution_id):
        transaction.actor = actor_context.current_context()
        return _AppliedLines.of(transaction, batch.prepared, batch.token, unfinished, budget=batch.share)


def _write_batch(batch: Batch) -> IngestResult | Exception:
    try:
        with actor_context.acting_as(session_id=batch.session_id, execution_id=batch.lease.execution_id):
            return _ingest(batch.session_id, batch.lease, batch.prepared, batch.token, budget=batch.share)
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:  # noqa: BLE001  (the stream handles it)
        return error


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

    More lines than fit into ``TRANSACTION_BUDGET`` are written in several transactions. A line that cannot be written
    is found by halving the batch, and replaced by an event about it. Raises LeaseLost and
    ``LINE_INDEPENDENT_ERRORS``.
    """
    result = _ingest(session_id, lease, PreparedLines.of(lines), token, alive=alive)
    while result.unwritten:
        rest = PreparedLines.of(lines[-result.unwritten :])
        further = _ingest(session_id, lease, rest, token, alive=alive)
        result = replace(further, agent_gone=result.agent_gone or further.agent_gone)
    return result


def _ingest(
    session_id: uuid.UUID,
    lease: Lease | None,
    prepared: PreparedLines,
    token: Mapping[str, Any] | None,
    *,
    alive: bool = True,
    budget: int = TRANSACTION_BUDGET,
) -> IngestResult:
    write = partial(_write, session_id, lease, token=token, alive=alive, budget=budget)
    lines = prepared.lines
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
    budget: int,
) -> IngestResult:
    """Write the new lines of a batch that fit into the budget, what follows from them, and the cursor, or nothing."""
    with session_transaction(session_id, lease) as transaction:
        return _write_all([_AppliedLines.of(transaction, prepared, token, alive=alive, budget=budget)])[0]


@dataclass(frozen=True, slots=True)
class _AppliedLines:
    """The new lines of a batch, applied to the transaction of their session but not written yet."""

    transaction: SessionTransaction
    execution: ExecutorRunning
    applier: LineApplier
    token: Mapping[str, Any] | None
    unwritten: int = 0

    @classmethod
    def of(
        cls,
        transaction: SessionTransaction,
        prepared: PreparedLines,
        token: Mapping[str, Any] | None,
        unfinished: Sequence[MessageDraft] | None = None,
        *,
        alive: bool = True,
        budget: int = TRANSACTION_BUDGET,
    ) -> _AppliedLines:
        """Apply the lines behind the cursor, and move it; ``unfinished`` are the session's messages, if known.

        Lines beyond the budget are left. A short line can write a lot: an update of a tool call writes all of it.
        """
        execution = transaction.execution
        if execution is None:
            raise ExecutorRunning.DoesNotExist(f"session {transaction.session.id} has no execution")
        new_lines = CursorFilter(execution.journal_epoch, execution.journal_seq)
        if prepared.continues(new_lines.epoch, new_lines.seq):
            new_lines.accept_all(prepared.lines)
            folded = prepared.folded
        else:
            folded = fold_texts(new_lines.read(prepared.lines).new)
        applier = LineApplier(transaction, folded, unfinished)
        sizes = written_sizes(budget, folded, applier)
        if len(sizes) < len(folded):
            end = _index_of(folded[len(sizes)], prepared.lines)
            first = cls.of(transaction, PreparedLines.of(prepared.lines[:end]), token, unfinished, alive=alive)
            return replace(first, unwritten=len(prepared.lines) - end)
        _record_gaps(transaction, execution, new_lines)
        quota = OutputQuota(transaction, execution, applier.conversation, applier.open_requests)
        for line, size in zip(folded, sizes, strict=True):
            transaction.at = _time_of(line)
            if execution.output_limit != SESSION and applier.begin_agent_turn(line):
                quota.begin_turn()
            if quota.admits(line, size):
                applier.apply(line)
        quota.finish()
        applier.finish()
        transaction.at = execution.updated_at = timezone.now()
        if alive:
            execution.last_seen_at = transaction.at
        elif new_lines.new:
            execution.last_seen_at = _time_of(new_lines.new[-1])
        execution.journal_epoch, execution.journal_seq = new_lines.epoch, new_lines.seq
        return cls(transaction, execution, applier, token)

    @property
    def result(self) -> IngestResult:
        """The cursor, and whether the agent has ended."""
        cursor = self.execution.journal_epoch, self.execution.journal_seq
        return IngestResult(*cursor, self.applier.agent_gone, self.unwritten)


def _write_all(batches: Sequence[_AppliedLines]) -> list[IngestResult]:
    """Write the cursors and schedule the rest, in the caller's transaction of all their sessions."""
    schedule_writes([applied.applier.conversation for applied in batches])
    executions = [applied.execution for applied in batches]
    update_rows(ExecutorRunning, CURSOR_FIELDS, list(map(attrgetter(*CURSOR_FIELDS, "id"), executions)))
    for applied in batches:
        if changed := store_reported_token(applied.transaction, applied.execution, applied.token):
            applied.execution.save(update_fields=changed)
        _reach_crash_points(applied.transaction.session.id)
    return [applied.result for applied in batches]


def _reach_crash_points(session_id: uuid.UUID) -> None:
    crash_points.reached("supervisor.ingest_before_commit", session_id)
    on_commit(lambda: crash_points.reached("supervisor.ingest_after_commit", session_id))


def _time_of(line: JournalLine) -> datetime:
    return datetime.fromtimestamp(float(line["ts"]), UTC)


def _index_of(folded: JournalLine, lines: Sequence[JournalLine]) -> int:
    """Return where the first line of a folded one is."""
    place = folded["epoch"], folded["seq"]
    return next(index for index, line in enumerate(lines) if (line.get("epoch"), line.get("seq")) == place)


def _record_gaps(transaction: SessionTransaction, execution: ExecutorRunning, new_lines: CursorFilter) -> None:
    """Record gaps and skipped lines, before the events of the lines that follow them."""
    since = execution.last_seen_at
    for reason in new_lines.gaps:
        transaction.record_event(JournalGap(reason=reason, since=since.isoformat() if since else None))
        count_in_transaction([("kandev_journal_gaps_total", {"cause": reason}, 1)])
    for reason, lines in _by_reason(new_lines.skipped).items():
        count, first = len(lines), lines[0]
        log.warning("session %s: %d lines of its journal are skipped: %s", transaction.session.id, count, reason)
        transaction.record_event(
            JournalSkipped(reason=reason, count=count, seq=first.get("seq"), kind=str(first["kind"])[:64])
        )


def _by_reason(skipped: Sequence[tuple[str, JournalLine]]) -> Mapping[str, Sequence[JournalLine]]:
    found: dict[str, list[JournalLine]] = {}
    for reason, line in skipped:
        found.setdefault(reason, []).append(line)
    return found


@dataclass
class CursorFilter:
    """Splits journal lines by a cursor into new, known and unusable ones."""

    epoch: str
    seq: int
    new: list[JournalLine] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    """Gaps before new lines, where output may be lost: ``new_epoch`` or ``lines_missing``."""
    skipped: list[tuple[str, JournalLine]] = field(default_factory=list)
    """Reason and line: ``unreadable`` or ``out_of_order``."""

    def read(self, lines: Sequence[JournalLine]) -> CursorFilter:
        """Read a batch and move the cursor to its last good line; return self."""
        for line, following in zip_longest(lines, lines[1:]):
            if line["kind"] == UNREADABLE:
                self.skipped.append((UNREADABLE, line))
            elif self._is_known(line):
                # Before the first new line it is a repetition, as after a crash before the acknowledgement.
                if self.new:
                    self.skipped.append(("out_of_order", line))
            elif following is not None and self._is_out_of_order(line, following):
                self.skipped.append(("out_of_order", line))
            else:
                self._accept(line)
        return self

    def accept_all(self, lines: Sequence[JournalLine]) -> None:
        """Take lines that continue at the cursor without a gap."""
        self.new.extend(lines)
        self.epoch, self.seq = lines[-1]["epoch"], lines[-1]["seq"]

    def _is_known(self, line: JournalLine) -> bool:
        return bool(line["epoch"] == self.epoch and line["seq"] <= self.seq)

    def _is_out_of_order(self, line: JournalLine, following: JournalLine) -> bool:
        """Whether the following line continues at the cursor and this one does not come before it."""
        continues = following["kind"] != UNREADABLE and following["epoch"] == self.epoch and following["seq"] > self.seq
        return bool(continues and not (line["epoch"] == self.epoch and line["seq"] < following["seq"]))

    def _accept(self, line: JournalLine) -> None:
        if self.epoch and line["epoch"] != self.epoch:
            # Covers lines missing at its beginning; those of a first epoch are reported below.
            self.gaps.append("new_epoch")
        elif line["seq"] > self.seq + 1:
            self.gaps.append("lines_missing")
        self.epoch, self.seq = line["epoch"], line["seq"]
        self.new.append(line)
