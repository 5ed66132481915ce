"""Batches of journal lines: read ahead, reduced to what must be written, limited, and written into the log.

A batch of lines, the states and events that follow from them, and the new cursor commit in one transaction: after a
crash the same lines arrive again, and the cursor filters out those that count already.

*Texts.* Pieces of one text that follow each other become one line, before the session is locked, so that other writers
wait for the database only. That is what reaches the log anyway: a batch writes one event for them.

*Costs.* A transaction is divided between the sessions that want to write, so that one session's flood delays only
itself. Everything is counted in bytes: those of a line, ``LINE_COST`` for each, and ``STATEMENTS_COST`` for one that
writes rows of its own.

*Limits.* Beyond the limit for a turn or a session, the agent's texts, plans and tool calls are left out of the log.
That is shown at once, and their bytes are counted in a message where they would stand. What somebody waits for is still
stored: permission requests, the ends of turns, settings. An agent that floods with those is stopped at the next
multiple of the limit, and so is one that leaves too many requests open. The counts are columns of the execution and
commit with the cursor. So they survive every restart, and a line that arrives twice counts once.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import groupby, islice, takewhile, zip_longest
from operator import attrgetter
from typing import Any, Final

from django.conf import settings
from django.db import InterfaceError, OperationalError, transaction
from django.db.transaction import on_commit
from django.template.defaultfilters import filesizeformat
from django.utils import timezone

from executors_app.machine import crash_points
from executors_app.models import ExecutorRunning
from executors_app.wire.line_format import UNREADABLE
from executors_app.wire.protocol import TURN_ENDS, JournalKind
from sessions_app.journal import UNSTORABLE, LineApplier
from sessions_app.kernel import actor_context
from sessions_app.kernel.database_threads import is_too_long
from sessions_app.kernel.locking import LockTimer, lock_on_first_write
from sessions_app.kernel.rules.json_size import json_size
from sessions_app.kernel.rules.states import DesiredState, RunState, WorkState
from sessions_app.kernel.transactions import create_intent
from sessions_app.models import (
    IntentKind,
    Lease,
    LeaseLost,
    MessageDraft,
    SessionTransaction,
    session_transaction,
    session_transactions,
    unfinished_messages,
    update_rows,
)
from sessions_app.permissions.open_requests import (
    MAX_OPEN_BYTES,
    MAX_OPEN_REQUESTS,
    OpenRequest,
    OpenRequests,
    complete_tool_call,
)
from sessions_app.recovery.continuity import store_reported_token
from sessions_app.stream.conversation import (
    MAX_OPEN_TOOL_BYTES,
    MAX_OPEN_TOOLS,
    OUTPUT_ONLY_KINDS,
    TEXT_KINDS,
    TOOL_KINDS,
    ConversationUpdate,
    JournalLine,
    JournalUpdate,
    schedule_writes,
    tool_values,
)
from sessions_app.stream.events.journal import JournalGap, JournalSkipped
from sessions_app.stream.rules.tool_calls import key_of_tool
from sessions_app.stream.services import LIMIT_SETTINGS, SESSION, STOP_REASON, TURN, allowed_bytes
from sessions_app.turns.events import OutputLeftOut, OutputLimited, OutputResumed
from sessions_app.turns.models import attach_session, newest_runs

log = logging.getLogger(__name__)
Lines = list[dict[str, Any]]
LINE_INDEPENDENT_ERRORS = (LeaseLost, ExecutorRunning.DoesNotExist, OperationalError, InterfaceError, MemoryError)
"""Errors that no single line causes: splitting the batch would not help."""
LINE_COST: Final = 512
"""Bytes that a line without content counts for: 2000 short lines take as long to write as 1 MiB of a tool's output."""
STATEMENTS_COST: Final = 64 << 10
"""Bytes that a line of ``STATEMENT_KINDS`` counts for besides: it takes 1 to 4 ms, however short it is. So does a line
that is searched for in the stored conversation, because it may be replayed."""
STATEMENT_KINDS: Final = TURN_ENDS | {
    JournalKind.PROMPT_ACCEPTED.value,
    JournalKind.PROMPT_DELIVERED.value,
    JournalKind.PERMISSION_REQUESTED.value,
    JournalKind.PERMISSION_RESOLVED.value,
    JournalKind.PERMISSION_CANCELLED.value,
    JournalKind.AGENT_EXITED.value,
}
"""Lines with statements of their own; those of all others are shared by the lines of a batch."""
TRANSACTION_BUDGET: Final = 1 << 20
"""Bytes of one transaction, give or take a line: they are written in 10 to 15 ms."""
MAX_LINES = 2000
"""Lines that a stream passes at once, give or take a frame."""
MAX_BUFFERED = 2000
"""Lines that may wait, give or take a frame: they are written in 10 to 15 ms, so that other streams get their turn.

When this many wait, the stream is not read further; agentctl's journal keeps the rest."""
MAX_BUFFERED_BYTES = 4 << 20
"""Bytes that may wait, give or take a frame; a frame has 64 KiB, or one line that is longer."""
LIMITED_KINDS: Final = (OUTPUT_ONLY_KINDS - {JournalKind.USAGE.value}) | {JournalKind.MESSAGE_USER.value}
"""Lines that are left out beyond a limit."""
_SUMMARY_KINDS: Final = TURN_ENDS | {JournalKind.AGENT_EXITED}
"""Lines before which the conversation gets the number of bytes that were left out."""
QUOTA_FIELDS: Final = ("output_bytes", "turn_output_bytes", "turn_output_allowed", "output_left_out", "output_limit")
"""Columns of the execution that change here."""
CURSOR_FIELDS = ("journal_epoch", "journal_seq", "last_seen_at", "updated_at", *QUOTA_FIELDS)
_TEXT_FIELDS: Final = frozenset({"seq", "epoch", "ts", "kind", "text", "agent_message_id"})
"""All fields of a piece of text; a line with others is checked alone when it is applied."""
_FLOOD: Final = (
    "The agent was stopped: requests and reports that must be stored exceeded twice the limit of its output."
)
_TOO_MANY_REQUESTS: Final = (
    f"The agent was stopped: it asked for more than {MAX_OPEN_REQUESTS} permissions or answers at once, or for more "
    f"than {MAX_OPEN_BYTES >> 20} MiB of them. The requests beyond that are not stored."
)


class LineBuffer:
    """The lines of one stream that have arrived and that nobody has taken yet, in order.

    The stream takes them as batches. While a batch waits for its transaction, the writer takes the output that has
    arrived meanwhile, which then belongs to that batch.
    """

    def __init__(self, frames: AsyncIterator[Lines]):
        self._frames = frames
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
            buffered += sum(map(line_bytes, frame))
            self._has_news.set()
            if len(self._lines) >= MAX_BUFFERED or buffered >= MAX_BUFFERED_BYTES:
                self._has_room.clear()
                await self._has_room.wait()
                buffered = 0


@dataclass(frozen=True, slots=True)
class PreparedLines:
    """Lines of one journal, in order, and the same with joined texts."""

    lines: Sequence[JournalLine]
    folded: Sequence[JournalLine]
    is_gapless: bool
    """Whether all lines are readable, of one epoch, and numbered one by one."""

    @classmethod
    def of(cls, lines: Sequence[JournalLine]) -> PreparedLines:
        """Prepare lines; never raises, because a malformed line is left as it is."""
        is_gapless = _is_gapless(lines)
        return cls(lines, fold_texts(lines) if is_gapless else (), is_gapless)

    def continues(self, epoch: str, seq: int) -> bool:
        """Whether a reader at this cursor has none of the lines and misses none before them."""
        return self.is_gapless and self.lines[0]["seq"] == seq + 1 and epoch in ("", self.lines[0]["epoch"])


def _is_gapless(lines: Sequence[JournalLine]) -> bool:
    if not lines or lines[0]["kind"] == UNREADABLE:
        return False
    epoch, first = lines[0]["epoch"], lines[0]["seq"]
    return all(
        line["kind"] != UNREADABLE and line["seq"] == seq and line["epoch"] == epoch
        for seq, line in enumerate(lines, start=first)
    )


def fold_texts(lines: Iterable[JournalLine]) -> list[JournalLine]:
    """Join the texts of lines of one kind that follow each other; the joined line has the time of the first."""
    folded: list[JournalLine] = []
    for kind, group in groupby(lines, key=_kind_of_text):
        if kind is None:
            folded += group
            continue
        first, *others = group
        folded.append({**first, "text": "".join([first["text"], *(line["text"] for line in others)])})
    return folded


def _kind_of_text(line: JournalLine) -> str | None:
    """Return the kind of a line that is a piece of text; None for any other and for a malformed one."""
    kind: str = line["kind"]
    is_piece = kind in TEXT_KINDS and isinstance(line.get("text"), str) and line.keys() <= _TEXT_FIELDS
    if is_piece:
        return kind
    return None


def line_cost(line: Mapping[str, Any]) -> int:
    """Return the bytes that a journal line counts for."""
    return line_bytes(line) + statements_cost(line)


def statements_cost(line: Mapping[str, Any]) -> int:
    """Return the bytes that the statements of a journal line count for, apart from its content."""
    has_statements = line.get("kind") in STATEMENT_KINDS or bool(line.get("may_be_replayed"))
    if has_statements:
        return STATEMENTS_COST
    return 0


def line_bytes(line: Mapping[str, Any]) -> int:
    """Return the bytes that a journal line has and writes, at least ``LINE_COST``."""
    if line.get("kind") in TEXT_KINDS:
        text = line.get("text")
        if isinstance(text, str):
            return LINE_COST + len(text)
    return LINE_COST + json_size(line)


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
    _costs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Here, on the event loop: in the writer's thread it would prolong the transaction.
        self.prepared = PreparedLines.of(self.lines[:])

    @property
    def is_output(self) -> bool:
        """Whether all lines of the next transaction only report output of the agent."""
        return OUTPUT_ONLY_KINDS.issuperset(line.get("kind") for line in self.prepared.lines)

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


class OutputQuota:
    """Decides for each line of a batch, in order, whether it is stored."""

    def __init__(
        self,
        transaction: SessionTransaction,
        execution: ExecutorRunning,
        conversation: ConversationUpdate,
        open_requests: OpenRequests,
    ):
        self._transaction, self._execution = transaction, execution
        self._conversation, self._open_requests = conversation, open_requests

    def admits(self, line: Mapping[str, Any], size: int) -> bool:
        """Return whether a line that writes ``size`` bytes is stored, and count it."""
        kind = line.get("kind")
        if kind == JournalKind.PROMPT_ACCEPTED:
            self._begin_turn()
        elif kind in _SUMMARY_KINDS or not self._execution.output_limit:
            self._record_left_out()  # the latter: a user has allowed more
        if kind in LIMITED_KINDS and self._is_beyond_limit(size):
            self._execution.output_left_out += size
            return False
        if kind == JournalKind.PERMISSION_REQUESTED and not self._open_requests.has_room_for(size):
            self._execution.output_left_out += size
            self._stop(_TOO_MANY_REQUESTS)
            return False
        self._execution.turn_output_bytes += size
        self._execution.output_bytes += size
        self._stop_if_flooding()
        return True

    def finish(self) -> None:
        """Close the oldest tool calls if too many are open; a turn that has written little cannot have so many."""
        if self._execution.turn_output_bytes >= min(MAX_OPEN_TOOLS * LINE_COST, MAX_OPEN_TOOL_BYTES):
            self._conversation.close_oldest_tools()

    def _begin_turn(self) -> None:
        self._record_left_out()
        execution = self._execution
        execution.turn_output_bytes = execution.turn_output_allowed = 0
        if execution.output_limit == TURN:
            execution.output_limit = ""
            self._transaction.record_event(OutputResumed(limit=LIMIT_SETTINGS[TURN], reason="next_turn"))

    def _is_beyond_limit(self, size: int) -> bool:
        if self._execution.output_limit:
            return True
        for limit, used in self._used().items():
            allowed = allowed_bytes(self._execution, limit)
            if allowed and used + size > allowed:
                self._reach(limit, allowed)
                return True
        return False

    def _used(self) -> dict[str, int]:
        return {TURN: self._execution.turn_output_bytes, SESSION: self._execution.output_bytes}

    def _reach(self, limit: str, allowed: int) -> None:
        self._execution.output_limit = limit
        name = LIMIT_SETTINGS[limit]
        self._conversation.finish_text()
        text = (
            f"The agent’s output has reached the limit of {filesizeformat(allowed)} for one {limit} ({name}). "
            "What it writes from here on is not stored. Its requests and the end of its turn still arrive. "
            "Choose “Store more output”, cancel the turn, or stop the agent."
        )
        self._conversation.add_message("status", text, output_limit={"limit": name, "bytes": allowed})
        self._transaction.record_event(OutputLimited(limit=name, bytes_=allowed))

    def _record_left_out(self) -> None:
        """Add a message with the number of bytes that are missing at this place."""
        left_out, self._execution.output_left_out = self._execution.output_left_out, 0
        if not left_out:
            return
        self._conversation.finish_text()
        text = f"{left_out:,} bytes of the agent’s output were left out here."
        self._conversation.add_message("status", text, output_left_out={"bytes": left_out})
        self._transaction.record_event(OutputLeftOut(bytes_=left_out))

    def _stop_if_flooding(self) -> None:
        """Stop the session if what must be stored exceeds the limit once more."""
        for limit, used in self._used().items():
            default = getattr(settings, LIMIT_SETTINGS[limit])
            if default and used > allowed_bytes(self._execution, limit) + default:
                self._stop(_FLOOD)
                return

    def _stop(self, explanation: str) -> None:
        transaction = self._transaction
        if transaction.session.desired_state == DesiredState.STOPPED:
            return
        transaction.set_fields(desired_state=DesiredState.STOPPED, start_rank=None)
        create_intent(transaction.session, IntentKind.STOP, None, {"reason": STOP_REASON})
        self._conversation.finish_text()
        self._conversation.add_message("status", explanation)
