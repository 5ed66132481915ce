"""Import sessions from a portable record, one transaction each, with their prompts, receipts and tokens."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from django.db.transaction import atomic, set_rollback
from django.utils import timezone

from sessions_app.events import rebuild_rows
from sessions_app.kernel.rules.states import PromptKind, PromptState, SessionState
from sessions_app.models import (
    Attachment,
    ContinuityReceipt,
    Prompt,
    ResumeToken,
    TaskSession,
    Turn,
    refresh_task_state,
    session_transaction,
)
from sessions_app.portable import portable_rows as rows_in
from sessions_app.portable.database_restore import hold_doubtful
from sessions_app.portable.portable_rows import find_or_create_parents, find_user
from sessions_app.portable.reading import Finding, NumberedEvent, RecordReader, SnapshotValues, list_records
from sessions_app.portable.record import LOG_SUFFIX, SNAPSHOT_SUFFIX
from sessions_app.portable.rules.portable_rebuild import PromptRow, SessionRebuild
from sessions_app.prompts.rules.attachments import MAX_FILES, AttachedFile, clean_name, media_type_of
from sessions_app.recovery.rules.verification import ReceiptKind, Verified
from sessions_app.stream.events.journal import JournalGap
from sessions_app.turns.interruptions import interrupt_turn
from sessions_app.waits import models as waits
from sessions_app.waits.rules.wait_tokens import WaitKind

LEDGER_BATCH_SIZE: Final = 1000


def write_prompts(session: TaskSession, snapshot: SnapshotValues, rows: SessionRebuild, last_seq: int) -> list[str]:
    """Write the prompts; return a description of each that had to be left out."""
    newer, problems, recorded = snapshot.number("last_seq") >= last_seq, [], {}
    files: dict[str, list[dict[str, Any]]] = {}
    for values in snapshot.rows("prompts"):
        message_id, created_at = values.text("message_id", 129), values.time("created_at")
        if not 0 < len(message_id) <= 128 or message_id in recorded:
            problems.append(f"a prompt has no valid message_id, or a repeated one: {message_id[:40]!r}")
            continue
        recorded[message_id] = values
        state = values.one_of("state", set(PromptState), PromptState.HELD)
        row = rows.prompts.setdefault(
            message_id, PromptRow(message_id, values.text("kind"), state, created_at or timezone.now())
        )
        row.text = values.text("text") or row.text
        files[message_id] = _read_attachments(values)
        row.created_at = created_at or row.created_at
        row.state = state if newer else row.state
    made = {}
    for key, row in rows.prompts.items():
        if not row.text and row.state not in (PromptState.DONE, PromptState.DISMISSED, PromptState.WITHDRAWN):
            problems.append(f"prompt {key[:40]!r} has no text")
            continue
        kind = row.kind if row.kind in set(PromptKind) else PromptKind.USER
        by = find_user(recorded[key].text("by")) if key in recorded else None
        made[key] = Prompt(
            session=session,
            message_id=key,
            text=row.text,
            attachments=files.get(key, []),
            kind=kind,
            state=row.state,
            by=by,
        )
    _insert_rows(list(made.values()), [rows.prompts[key].created_at for key in made])
    _link_replacements(made, recorded)
    return problems


def _read_attachments(prompt: SnapshotValues) -> list[dict[str, Any]]:
    """Return the files that a prompt names; a prompt whose files are not in the record can be read, but not resent."""
    return [
        {
            "name": clean_name(values.text("name")),
            "media_type": values.text("media_type", 100),
            "size": values.number("size"),
            "sha256": values.text("sha256", 64),
        }
        for values in prompt.rows("attachments")[:MAX_FILES]
    ]


def named_files(session: TaskSession) -> set[str]:
    """Return the digests of the files that the session's prompts name."""
    return {
        file["sha256"] for files in session.prompts.values_list("attachments", flat=True).iterator() for file in files
    }


def write_attachments(session: TaskSession, contents: Iterable[bytes]) -> None:
    """Write the files of the session's prompts."""
    for content in contents:
        file = AttachedFile("", media_type_of(content) or "", content)
        Attachment.objects.create(
            session=session, sha256=file.described()["sha256"], media_type=file.media_type, content=content
        )


def _link_replacements(made: dict[str, Prompt], recorded: dict[str, SnapshotValues]) -> None:
    """Link the prompts that were resent or continued to those that replaced them."""
    for name in ("resent_as", "continued_by"):
        taken: set[str] = set()
        for key, values in recorded.items():
            other = values.text(name, 128)
            if key in made and other in made and other not in taken:
                taken.add(other)
                Prompt.objects.filter(id=made[key].pk).update(**{name: made[other]})


def write_receipts(session: TaskSession, snapshot: SnapshotValues, rows: SessionRebuild) -> None:
    """Write the receipts, with their evidence if the snapshot has it."""
    recorded = {values.id("id"): values for values in snapshot.rows("receipts")}
    receipts, times = [], []
    for row in rows.receipts.values():
        more = recorded.get(row.id, SnapshotValues(None))
        launch_id = more.text("launch_id", 64) or None
        if launch_id and ContinuityReceipt.objects.filter(launch_id=launch_id).exists():
            launch_id = None
        receipts.append(
            ContinuityReceipt(
                id=row.id,
                session=session,
                kind=row.kind if row.kind in set(ReceiptKind) else ReceiptKind.FAILED,
                verified=row.verified if row.verified in set(Verified) else Verified.NONE,
                strategy=row.strategy,
                reason=row.reason,
                evidence=more.raw("evidence") if isinstance(more.raw("evidence"), dict) else {},
                launch_id=launch_id,
                after_seq=more.number("after_seq") or row.after_seq,
            )
        )
        times.append(more.time("created_at") or row.created_at)
    _insert_rows(receipts, times)


def write_tokens(session: TaskSession, tokens: SnapshotValues) -> None:
    """Write the keys of waits; all that are still active are revoked afterwards."""
    rows = []
    for values in tokens.rows("tokens"):
        key, secret_hash = values.id("id"), values.text("secret_hash", 65)
        if key is None or len(secret_hash) != 64:
            continue
        run = Turn.objects.filter(id=values.id("run_id") or uuid.uuid4(), session=session).first()
        rows.append(
            ResumeToken(
                id=key,
                session=session,
                run=run,
                wait_kind=values.one_of("wait_kind", set(WaitKind), WaitKind.EXTERNAL),
                wait_id=values.text("wait_id", 128),
                secret_hash=secret_hash,
                reason=values.text("reason", 64),
                created_at=values.time("created_at") or timezone.now(),
                **{name: values.time(name) for name in ("expires_at", "consumed_at", "revoked_at", "expired_at")},
            )
        )
    ResumeToken.objects.bulk_create(rows, ignore_conflicts=True)


def _insert_rows(rows: Sequence[Any], times: Sequence[datetime]) -> None:
    """Insert rows and then set ``created_at``, which an insert overwrites."""
    if not rows:
        return
    manager = type(rows[0])._default_manager
    manager.bulk_create(rows)
    for row, time in zip(rows, times, strict=True):
        row.created_at = time
    manager.bulk_update(rows, ["created_at"], batch_size=LEDGER_BATCH_SIZE)


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
        reader.report(
            reader.stem, 0, f"the database rejected it: {str(error).splitlines()[0] if str(error) else error!r}"
        )
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
    events, gaps = [line.event for line in lines], _find_gaps(lines, snapshot)
    result.notes += _report_gaps(reader, gaps)
    # One transaction: after a crash, the session exists completely and is skipped next time, or not at all.
    with atomic():
        places = find_or_create_parents(session_id, snapshot, team)
        last_seq = events[-1].seq if events else 0
        session = rows_in.write_session(session_id, snapshot, rows, places, last_seq)
        rows_in.write_chosen_settings(session, snapshot)
        rows_in.write_events(session_id, events)
        for problem in write_prompts(session, snapshot, rows, last_seq):
            reader.report(reader.stem + SNAPSHOT_SUFFIX, 0, problem)
        rows_in.write_runs(session, snapshot, rows)
        rows_in.write_conversation(session, rows)
        write_attachments(session, reader.contents(named_files(session)))
        write_receipts(session, snapshot, rows)
        write_tokens(session, SnapshotValues(reader.tokens()))
        result.held = _settle_session(session_id, gaps)
        refresh_task_state(places.task.id)
        set_rollback(dry_run)  # a dry run does everything first, so that it finds the same problems
    result.outcome = "imported"
    result.notes += places.notes
    result.events, result.messages = len(events), len(rows.messages)


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
    gaps, before, since, place = [], 0, None, 0
    for line in lines:
        if line.event.seq > before + 1:
            gaps.append(LogGap(before + 1, line.event.seq - 1, since, line.line))
        before, since, place = line.event.seq, line.event.at, line.line
    if snapshot.number("last_seq") > before:
        gaps.append(LogGap(before + 1, snapshot.number("last_seq"), since, place))
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
            since = gaps[-1].since.isoformat() if gaps[-1].since else None
            transaction.record_event(JournalGap(reason=INCOMPLETE_CODE, since=since, lost_events=missing))
        held = hold_doubtful(transaction)
        interrupt_turn(transaction, rows_in.IMPORTED_ERROR_CODE)
        waits.revoke_tokens(transaction, rows_in.IMPORTED_ERROR_CODE)
        if transaction.session.state in (SessionState.STARTING, SessionState.RUNNING):
            transaction.move_session("stop", reason=rows_in.IMPORTED_ERROR_CODE)
    return held
