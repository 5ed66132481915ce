"""Import sessions from a portable record, one transaction each."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from django.db.transaction import atomic, set_rollback

from sessions_app.events import rebuild_rows
from sessions_app.kernel.rules.log_event import LogEvent
from sessions_app.kernel.rules.rebuild import SessionRebuild
from sessions_app.kernel.rules.states import SessionState
from sessions_app.models import (
    TaskSession,
    refresh_task_state,
    session_transaction,
)
from sessions_app.portable.database_restore import hold_doubtful
from sessions_app.portable.reader import Finding, NumberedEvent, RecordReader, list_records
from sessions_app.portable.record import LOG_SUFFIX, SNAPSHOT_SUFFIX
from sessions_app.portable.rows.conversation import write_conversation, write_events
from sessions_app.portable.rows.ledger import write_receipts, write_tokens
from sessions_app.portable.rows.parents import SessionParents, find_or_create_parents
from sessions_app.portable.rows.prompts import named_files, write_attachments, write_prompts
from sessions_app.portable.rows.review_comments import write_review_comments
from sessions_app.portable.rows.session import IMPORTED_ERROR_CODE, write_chosen_settings, write_session
from sessions_app.portable.rows.turns import write_runs
from sessions_app.portable.snapshot_values import SnapshotValues
from sessions_app.stream.events.journal import JournalGap
from sessions_app.turns.interruptions import interrupt_turn
from sessions_app.usage.models import add_imported_budget
from sessions_app.usage.rules.budgets import Limits
from sessions_app.waits.models import revoke_wait_keys

log = logging.getLogger(__name__)

FOREIGN_ID_NAMESPACE: Final = uuid.UUID("5f0e2b52-9d0c-5b5e-8a53-0f6f4a7d9d11")
"""Namespace of the ids that are derived from foreign session names."""
INCOMPLETE_CODE: Final = "record_incomplete"
ReportProgress = Callable[[int, int], None]


@dataclass
class ImportResult:
    """The result for one session of a record."""

    stem: str
    session_id: uuid.UUID | None = None
    title: str = ""
    outcome: str = "skipped"
    """``imported``, ``there`` (it exists already) or ``skipped``."""
    events: int = 0
    messages: int = 0
    held: int = 0
    findings: list[Finding] = field(default_factory=list)
    unlisted: int = 0
    """Problems beyond the listed ones."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LogGap:
    """Lines that are missing in a log."""

    first: int
    last: int
    since: datetime | None
    """Time of the line before the gap."""
    line: int
    """Number of the file's line before which they are missing."""


def import_sessions(folder: Path, team: str, progress: ReportProgress, *, dry_run: bool = False) -> list[ImportResult]:
    """Import every session that does not exist yet; raises OSError if the folder cannot be read."""
    stems = list_records(folder)
    results = []
    progress(0, len(stems))
    for done, stem in enumerate(stems, start=1):
        results.append(_import_safely(RecordReader(folder, stem), team, dry_run=dry_run))
        progress(done, len(stems))
    return results


def _import_safely(reader: RecordReader, team: str, *, dry_run: bool) -> ImportResult:
    result = ImportResult(reader.stem, findings=reader.findings)
    try:
        _import_session(reader, result, team, dry_run=dry_run)
    except OSError as error:
        # Skipped as a whole: once the disk is read again, the next import brings all of it.
        result.outcome = "skipped"
        reader.report(reader.stem, 0, f"it cannot be read: {error.strerror or error}")
    except Exception as error:
        log.debug("session %s could not be imported", reader.stem, exc_info=True)
        result.outcome = "skipped"
        reason, *_ = str(error).splitlines() or [repr(error)]
        reader.report(reader.stem, 0, f"the database rejected it: {reason}")
    result.unlisted = reader.unlisted
    return result


def _import_session(reader: RecordReader, result: ImportResult, team: str, *, dry_run: bool) -> None:
    snapshot = SnapshotValues(reader.snapshot())
    result.session_id = session_id = _session_id_of(reader.stem)
    result.title = snapshot.text("title", 300)
    if snapshot and snapshot.text("id") != reader.stem:
        reader.report(reader.stem + SNAPSHOT_SUFFIX, 0, f"names another session: {snapshot.text('id', 80)!r}")
        return
    if TaskSession.objects.filter(id=session_id).exists():
        result.outcome = "there"
        return
    rows = SessionRebuild(session_id)
    lines = _replay_log(reader, rows)
    if not lines and not snapshot:
        reader.report(reader.stem, 0, "no part of it can be read")
        return
    events = [line.event for line in lines]
    gaps = _find_gaps(lines, snapshot)
    result.notes += _report_gaps(reader, gaps)
    # One transaction: after a crash, the session exists completely and is skipped next time, or not at all.
    with atomic():
        parents = find_or_create_parents(session_id, snapshot, team)
        _write_rows(reader, snapshot, rows, parents, events)
        result.held = _settle_session(session_id, gaps)
        refresh_task_state(parents.task.id)
        set_rollback(dry_run)  # a dry run does everything first, so that it finds the same problems
    result.outcome = "imported"
    result.notes += parents.notes
    result.events, result.messages = len(events), len(rows.messages)


def _write_rows(
    reader: RecordReader,
    snapshot: SnapshotValues,
    rows: SessionRebuild,
    parents: SessionParents,
    events: Sequence[LogEvent],
) -> None:
    last_seq = events[-1].seq if events else 0
    session = write_session(rows.session_id, snapshot, rows, parents, last_seq)
    write_chosen_settings(session, snapshot)
    add_imported_budget(session, Limits(**rows.budget))
    write_events(session.id, events)
    for problem in write_prompts(session, snapshot, rows, last_seq):
        reader.report(reader.stem + SNAPSHOT_SUFFIX, 0, problem)
    write_runs(session, snapshot, rows)
    write_conversation(session, rows)
    write_attachments(session, reader.contents(named_files(session)))
    write_review_comments(session, snapshot)
    write_receipts(session, snapshot, rows)
    write_tokens(session, SnapshotValues(reader.tokens()))


def _session_id_of(stem: str) -> uuid.UUID:
    """Return our session id, or one derived from a foreign name, the same each time."""
    try:
        found = uuid.UUID(stem)
    except ValueError:
        return uuid.uuid5(FOREIGN_ID_NAMESPACE, stem)
    if str(found) == stem:
        return found
    return uuid.uuid5(FOREIGN_ID_NAMESPACE, stem)


def _replay_log(reader: RecordReader, rows: SessionRebuild) -> list[NumberedEvent]:
    lines = []
    for line in reader.log():
        try:
            lines.append(NumberedEvent(line.line, rebuild_rows(rows, line.event)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reader.report(reader.stem + LOG_SUFFIX, line.line, f"is not valid: {error}")
    return lines


def _find_gaps(lines: Sequence[NumberedEvent], snapshot: SnapshotValues) -> list[LogGap]:
    """Return the gaps in a log."""
    gaps = []
    last_seq, since, place = 0, None, 0
    for line in lines:
        if line.event.seq > last_seq + 1:
            gaps.append(LogGap(last_seq + 1, line.event.seq - 1, since, line.line))
        last_seq, since, place = line.event.seq, line.event.at, line.line
    if snapshot.number("last_seq") > last_seq:
        gaps.append(LogGap(last_seq + 1, snapshot.number("last_seq"), since, place))
    return gaps


def _report_gaps(reader: RecordReader, gaps: Sequence[LogGap]) -> list[str]:
    """Report missing lines; a log whose beginning was pruned gets only a note, because it is not damaged."""
    notes = []
    for gap in gaps:
        if gap.first == gap.last:
            which = f"line {gap.first} is"
        else:
            which = f"lines {gap.first} to {gap.last} are"
        if gap.first == 1 and gap.line:
            notes.append(f"the log begins late: {which} missing")
        else:
            reader.report(reader.stem + LOG_SUFFIX, gap.line, f"{which} missing")
    return notes


def _settle_session(session_id: uuid.UUID, gaps: Sequence[LogGap]) -> int:
    """Record that nothing of the session runs here; return how many prompts are held."""
    with session_transaction(session_id) as transaction:
        if gaps:
            missing = sum(gap.last - gap.first + 1 for gap in gaps)
            last_line = gaps[-1].since
            since = last_line.isoformat() if last_line else None
            transaction.record_event(JournalGap(reason=INCOMPLETE_CODE, since=since, lost_events=missing))
        held = hold_doubtful(transaction)
        interrupt_turn(transaction, IMPORTED_ERROR_CODE)
        revoke_wait_keys(transaction, IMPORTED_ERROR_CODE)
        if transaction.session.state in (SessionState.STARTING, SessionState.RUNNING):
            transaction.move_session("stop", reason=IMPORTED_ERROR_CODE)
    return held
