"""Write batches of journal lines into the log, several in one transaction.

A batch of lines, the states and events that follow from them, and the new cursor commit in one transaction: after a
crash the same lines arrive again, and the cursor filters out those that count already.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from operator import attrgetter
from typing import Any

from django.db import InterfaceError, OperationalError, transaction
from django.db.transaction import on_commit
from django.utils import timezone

from executors_app import crash_points
from executors_app.models import ExecutorRunning
from sessions_app.domain import actor_context
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
from sessions_app.models.locking import LockTimer, lock_on_first_write
from sessions_app.supervisor.continuity import store_reported_token
from sessions_app.supervisor.conversation import schedule_writes
from sessions_app.supervisor.ingest.folding import OUTPUT_KINDS, CursorFilter, JournalLine, PreparedLines, fold_texts
from sessions_app.supervisor.ingest.handlers import UNSTORABLE, LineApplier

log = logging.getLogger(__name__)
Lines = list[dict[str, Any]]


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
    session_id: uuid.UUID, lease: Lease | None, prepared: PreparedLines, *, token: Mapping[str, Any] | None, alive: bool
) -> IngestResult:
    """Write the new lines of a batch, what follows from them, and the cursor; all or nothing."""
    with session_transaction(session_id, lease) as transaction:
        return _write_all([_AppliedLines.of(transaction, prepared, token, alive=alive)])[0]


@dataclass(frozen=True, slots=True)
class _AppliedLines:
    """The new lines of a batch, applied to the transaction of their session but not written yet."""

    transaction: SessionTransaction
    execution: ExecutorRunning
    applier: LineApplier
    token: Mapping[str, Any] | None

    @classmethod
    def of(
        cls,
        transaction: SessionTransaction,
        prepared: PreparedLines,
        token: Mapping[str, Any] | None,
        unfinished: Sequence[MessageDraft] | None = None,
        *,
        alive: bool = True,
    ) -> _AppliedLines:
        """Apply the lines behind the cursor, and move it; ``unfinished`` are the session's messages, if known."""
        execution = transaction.execution
        if execution is None:
            raise ExecutorRunning.DoesNotExist(f"session {transaction.session.id} has no execution")
        new_lines = CursorFilter(execution.journal_epoch, execution.journal_seq)
        if prepared.continues(new_lines.epoch, new_lines.seq):
            new_lines.accept_all(prepared.lines)
            folded = prepared.folded
        else:
            folded = fold_texts(new_lines.read(prepared.lines).new)
        _record_gaps(transaction, execution, new_lines)
        applier = LineApplier(transaction, folded, unfinished)
        for line in folded:
            applier.apply(line)
        applier.finish()
        transaction.at = execution.updated_at = timezone.now()
        if alive:
            execution.last_seen_at = transaction.at
        elif new_lines.new:
            execution.last_seen_at = datetime.fromtimestamp(float(new_lines.new[-1]["ts"]), UTC)
        execution.journal_epoch, execution.journal_seq = new_lines.epoch, new_lines.seq
        return cls(transaction, execution, applier, token)

    @property
    def result(self) -> IngestResult:
        """The cursor, and whether the agent has ended."""
        return IngestResult(self.execution.journal_epoch, self.execution.journal_seq, self.applier.agent_gone)


def _record_gaps(transaction: SessionTransaction, execution: ExecutorRunning, new_lines: CursorFilter) -> None:
    """Record gaps and skipped lines, before the events of the lines that follow them."""
    since = execution.last_seen_at
    for reason in new_lines.gaps:
        transaction.record_event("session.journal_gap", reason=reason, since=since.isoformat() if since else None)
    if new_lines.skipped:
        (reason, line), count = new_lines.skipped[0], len(new_lines.skipped)
        log.warning("session %s: %d lines of its journal are skipped: %s", transaction.session.id, count, reason)
        transaction.record_event(
            "session.journal_skipped", reason=reason, count=count, seq=line.get("seq"), kind=line["kind"]
        )


CURSOR_FIELDS = ("journal_epoch", "journal_seq", "last_seen_at", "updated_at")


def _write_all(batches: Sequence[_AppliedLines]) -> list[IngestResult]:
    """Write the cursors and schedule the rest, in the caller's transaction of all their sessions."""
    schedule_writes([applied.applier.conversation for applied in batches])
    executions = [applied.execution for applied in batches]
    update_rows(ExecutorRunning, CURSOR_FIELDS, list(map(attrgetter(*CURSOR_FIELDS, "id"), executions)))
    for applied in batches:
        if told := store_reported_token(applied.transaction, applied.execution, applied.token):
            applied.execution.save(update_fields=told)
        _reach_crash_points(applied.transaction.session.id)
    return [applied.result for applied in batches]


MAX_LINES = 2000
"""Lines of one transaction, give or take a batch: they are written in 10 to 15 ms."""


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

    @property
    def is_output(self) -> bool:
        """Whether all lines only report output of the agent."""
        return OUTPUT_KINDS.issuperset(line.get("kind") for line in self.lines)

    def take_arrived(self) -> None:
        """Add the output that has arrived since the batch was passed, so that it need not wait for another commit."""
        room = max(0, MAX_LINES - len(self.lines))
        more = list(takewhile(lambda line: line.get("kind") in OUTPUT_KINDS, self.arriving[:room]))
        if more:
            del self.arriving[: len(more)]
            self.lines += more
            self.prepared = PreparedLines.of(self.lines)


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
        except Exception as error:  # noqa: BLE001  (the second attempt reports it)
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
        yield several


def _apply_batch(transaction: SessionTransaction, batch: Batch, unfinished: Sequence[MessageDraft]) -> _AppliedLines:
    with actor_context.acting_as(session_id=batch.session_id, execution_id=batch.lease.execution_id):
        transaction.actor = actor_context.current_context()
        return _AppliedLines.of(transaction, batch.prepared, batch.token, unfinished)


def _write_batch(batch: Batch) -> IngestResult | Exception:
    try:
        with actor_context.acting_as(session_id=batch.session_id, execution_id=batch.lease.execution_id):
            return _ingest(batch.session_id, batch.lease, batch.prepared, batch.token)
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:  # noqa: BLE001  (the stream handles it)
        return error
