"""Write a batch of journal lines in one transaction: filter by cursor, apply, store the cursor.

Show agentctl's trouble on the session.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import zip_longest
from typing import Any, Final

from django.db import InterfaceError, OperationalError
from django.db.transaction import on_commit
from django.utils import timezone

from executors_app import crash_points
from executors_app.agentctl.journal.line_format import UNREADABLE
from executors_app.agentctl.protocol import Code
from executors_app.models import ExecutorRunning
from sessions_app.domain.states import SessionState
from sessions_app.models import Lease, LeaseLost, SessionTransaction, session_transaction, update_rows
from sessions_app.supervisor.continuity import store_reported_token
from sessions_app.supervisor.ingest.handlers import UNSTORABLE, JournalLine, LineApplier

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


log = logging.getLogger(__name__)
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
