"""Write batches of journal lines into the log, several in one transaction.

A batch of lines, the states and events that follow from them, and the new cursor commit in one transaction: after a
crash the same lines arrive again, and the cursor filters out those that count already.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any

from django.db import InterfaceError, OperationalError, transaction
from django.db.transaction import on_commit
from django.utils import timezone

from executors_app.machine import crash_points
from executors_app.models import ExecutorRunning
from executors_app.wire.protocol import JournalKind
from sessions_app.journal import UNSTORABLE, LineApplier
from sessions_app.kernel import actor_context
from sessions_app.kernel.locking import LockTimer, is_too_long, lock_on_first_write
from sessions_app.kernel.rules.json_size import json_size
from sessions_app.kernel.rules.states import RunState, WorkState
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
from sessions_app.permissions.open_requests import OpenRequest, complete_tool_call
from sessions_app.recovery.continuity import store_reported_token
from sessions_app.stream.conversation import (
    OUTPUT_KINDS,
    TOOL_KINDS,
    JournalLine,
    JournalUpdate,
    schedule_writes,
    tool_values,
)
from sessions_app.stream.events.journal import JournalGap, JournalSkipped
from sessions_app.stream.ingest.folding import CursorFilter, PreparedLines, fold_texts
from sessions_app.stream.ingest.line_buffer import LineBuffer
from sessions_app.stream.ingest.quotas import QUOTA_FIELDS, OutputQuota
from sessions_app.stream.ingest.shares import LINE_COST, TRANSACTION_BUDGET, line_bytes, line_cost, statements_cost
from sessions_app.stream.rules.tool_calls import key_of_tool
from sessions_app.turns.models import attach_session, newest_runs

log = logging.getLogger(__name__)

LINE_INDEPENDENT_ERRORS = (LeaseLost, ExecutorRunning.DoesNotExist, OperationalError, InterfaceError, MemoryError)
"""Errors that no single line causes: splitting the batch would not help."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The cursor after a batch, and whether the agent has ended."""

    epoch: str
    seq: int
    agent_gone: bool = False
    unwritten: int = 0
    """Lines at the end of the batch that are left for another transaction, because they would cost too much in one."""


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
        sizes = _sizes_within(budget, folded, applier)
        if len(sizes) < len(folded):
            end = _index_of(folded[len(sizes)], prepared.lines)
            first = cls.of(transaction, PreparedLines.of(prepared.lines[:end]), token, unfinished, alive=alive)
            return replace(first, unwritten=len(prepared.lines) - end)
        _record_gaps(transaction, execution, new_lines)
        quota = OutputQuota(transaction, execution, applier.conversation, applier.open_requests)
        for line, size in zip(folded, sizes, strict=True):
            transaction.at = _time_of(line)
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


def _sizes_within(budget: int, lines: Sequence[JournalLine], update: JournalUpdate) -> list[int]:
    """Return the bytes that each of the first lines writes, of as many as fit into ``budget``, but at least one."""
    known: dict[str, Mapping[str, Any]] = {}
    sizes: list[int] = []
    for line in lines:
        size = _written_bytes(line, known, update)
        budget -= size + statements_cost(line)
        if budget < 0 and sizes:
            break
        sizes.append(size)
    return sizes


def _written_bytes(line: JournalLine, known: dict[str, Mapping[str, Any]], update: JournalUpdate) -> int:
    """Return the bytes that a line writes; ``known`` has the tool calls as the lines before it leave them."""
    kind = line.get("kind")
    if kind == JournalKind.PERMISSION_REQUESTED:
        return _requested_bytes(line, known, update)
    if kind not in TOOL_KINDS:
        return line_bytes(line)
    key = key_of_tool(line)
    before = known.get(key) or update.conversation.known_tool_fields(key)
    known[key] = {**before, **tool_values(line)}
    size = LINE_COST + json_size(known[key])
    return size + sum(max(size, request.size) for request in _requests_about(key, update))


def _requested_bytes(line: JournalLine, known: Mapping[str, Mapping[str, Any]], update: JournalUpdate) -> int:
    """Return the bytes of a permission request with what the log adds to its tool call."""
    requested = line.get("tool_call")
    if not isinstance(requested, dict):
        return line_bytes(line)
    key = key_of_tool(requested)
    before = known.get(key) or update.conversation.known_tool_fields(key)
    return LINE_COST + json_size({**line, "tool_call": complete_tool_call(requested, before)})


def _requests_about(key: str, update: JournalUpdate) -> Collection[OpenRequest]:
    """Return the open requests that show a tool call: each of them may be written with an update of the call."""
    turn = update.transaction.open_turn
    if turn is not None and turn.state == RunState.WAITING:
        return update.open_requests.of_tool(key)
    return ()


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
    if new_lines.skipped:
        (reason, line), count = new_lines.skipped[0], len(new_lines.skipped)
        log.warning("session %s: %d lines of its journal are skipped: %s", transaction.session.id, count, reason)
        transaction.record_event(
            JournalSkipped(reason=reason, count=count, seq=line.get("seq"), kind=str(line["kind"])[:64])
        )


CURSOR_FIELDS = ("journal_epoch", "journal_seq", "last_seen_at", "updated_at", *QUOTA_FIELDS)


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


MAX_LINES = 2000
"""Lines that a stream passes at once, give or take a frame."""


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
    _costs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Here, on the event loop: in the writer's thread it would prolong the transaction.
        self.prepared = PreparedLines.of(self.lines[:])

    @property
    def is_output(self) -> bool:
        """Whether all lines of the next transaction only report output of the agent."""
        return OUTPUT_KINDS.issuperset(line.get("kind") for line in self.prepared.lines)

    @property
    def cost(self) -> int:
        """Bytes that the unwritten lines count for."""
        self._costs += map(line_cost, self.lines[len(self._costs) :])
        return sum(islice(self._costs, self.written, None))

    @property
    def first_cost(self) -> int:
        """Bytes that the first line of the next transaction counts for."""
        if self.written < len(self._costs):
            return self._costs[self.written]
        return 0

    def take_arrived(self) -> None:
        """Add the output that has arrived since the batch was passed, so that it need not wait for another commit."""
        if self.buffer is not None:
            self.lines += self.buffer.take_output(max(0, MAX_LINES - len(self.lines)))

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


def _reach_crash_points(session_id: uuid.UUID) -> None:
    crash_points.reached("supervisor.ingest_before_commit", session_id)
    on_commit(lambda: crash_points.reached("supervisor.ingest_after_commit", session_id))


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
