"""Export logs to the portable record: the exporter's cursor, and writing what a session's record lacks."""

from __future__ import annotations

import json
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from django.db import connection
from django.db.models import Max

from executors_app.machine import crash_points
from sessions_app.models import Attachment, SessionEvent, TaskSession
from sessions_app.portable import record as portable_record
from sessions_app.portable import snapshot as portable_snapshot
from sessions_app.portable.record import SessionFiles, Tail
from sessions_app.portable.rules.portable_lines import BadLine, LogEvent, format_time, parse_time

CURSOR_BATCH: Final = 2000
"""Maximum number of events that one query reads to find their sessions."""
LATE_COMMIT_MARGIN: Final = 1000
"""Event ids are allocated before the commit: one that is this much smaller may still appear later."""
MAX_BEHIND: Final = 100_000


@dataclass(frozen=True, slots=True)
class ExportCursor:
    """The id of the last exported event row, and the sessions whose record is not complete up to it."""

    number: int = 0
    session_id: uuid.UUID | None = None
    seq: int = 0
    at: datetime | None = None
    behind: tuple[uuid.UUID, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for the file."""
        return {
            "number": self.number,
            "session_id": str(self.session_id) if self.session_id else None,
            "seq": self.seq,
            "at": format_time(self.at) if self.at else None,
            "behind": [str(one) for one in self.behind],
        }

    @classmethod
    def from_json(cls, told: Any) -> ExportCursor:
        """Parse a file's object; raises ValueError, KeyError, TypeError or BadLine."""
        session_id = told["session_id"]
        return cls(
            number=int(told["number"]),
            session_id=uuid.UUID(session_id) if session_id else None,
            seq=int(told["seq"]),
            at=parse_time(told["at"]) if told["at"] else None,
            behind=tuple(uuid.UUID(one) for one in told["behind"][:MAX_BEHIND]),
        )


def read_cursor() -> ExportCursor:
    """Read the stored cursor; at the beginning if there is none, or it is unreadable."""
    try:
        return ExportCursor.from_json(
            json.loads((portable_record.record_directory() / portable_record.CURSOR_FILE).read_bytes())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, BadLine):
        return ExportCursor()


def write_cursor(cursor: ExportCursor) -> None:
    """Store the cursor; raises OSError."""
    path = portable_record.record_directory() / portable_record.CURSOR_FILE
    draft = portable_record.write_draft(path, cursor.to_json())
    crash_points.reached("export.cursor_drafted")
    portable_record.replace_file(draft, path)
    crash_points.reached("export.cursor_replaced")


def sessions_behind(
    cursor: ExportCursor, seq_of: Callable[[uuid.UUID], int | None]
) -> tuple[set[uuid.UUID], ExportCursor]:
    """Return the sessions with events after the cursor, at most ``CURSOR_BATCH`` events' worth, and the new cursor.

    ``seq_of`` returns the last ``seq`` of a session's record, if it is cached.
    """
    rows = (
        SessionEvent.objects.filter(id__gt=cursor.number).order_by("id").values_list("id", "session_id")[:CURSOR_BATCH]
    )
    new = list(rows)
    changed = {session_id for _, session_id in new}
    # SQLite has one writer at a time, so its ids commit in order; PostgreSQL commits them in any order.
    if connection.vendor == "postgresql" and cursor.number:
        late = SessionEvent.objects.filter(id__gt=cursor.number - LATE_COMMIT_MARGIN, id__lte=cursor.number)
        for session_id, seq in late.values("session_id").annotate(last=Max("seq")).values_list("session_id", "last"):
            if (seq_of(session_id) or 0) < seq:
                changed.add(session_id)
    if not new:
        return changed, cursor
    number = new[-1][0]
    return changed, cursor_at(number)


def cursor_at(number: int) -> ExportCursor:
    """Return the cursor at the event row with this id."""
    row = SessionEvent.objects.filter(id=number).first()
    if row:
        return ExportCursor(number, row.session_id, row.seq, row.at)
    return ExportCursor(number)


def cursor_at_end() -> ExportCursor:
    """Return the cursor behind everything in the database."""
    return cursor_at(_highest_number())


def is_database_complete(cursor: ExportCursor) -> bool:
    """Return whether the database can have all that was exported; deleted sessions do not prove otherwise."""
    if not cursor.number:
        return True
    if _highest_number() < cursor.number:
        return False
    row = SessionEvent.objects.filter(id=cursor.number).values_list("session_id", "seq", "at").first()
    return row is None or cursor.at is None or row == (cursor.session_id, cursor.seq, cursor.at)


def _highest_number() -> int:
    """Return the highest id that an event row of this database ever had."""
    table = SessionEvent._meta.db_table
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_get_serial_sequence(%s, 'id')", [table])
            (sequence,) = cursor.fetchone()
            cursor.execute(f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {sequence}")  # noqa: S608
        else:
            cursor.execute("SELECT seq FROM sqlite_sequence WHERE name = %s", [table])
        row = cursor.fetchone()
    if row:
        return int(row[0])
    return 0


EVENT_BATCH: Final = 500
"""Maximum number of lines of one write."""
SNAPSHOT_EVERY: Final = 2.0
"""Minimum number of seconds between two snapshots of a session."""
REMEMBERED_SESSIONS: Final = 4096
"""Sessions whose record's end is cached; for others it is read again."""


@dataclass(slots=True)
class _RememberedRecord:
    tail: Tail
    snapshot_at: float = float("-inf")
    tokens: dict[str, Any] | None = None


class RecordWriter:
    """Writes the records in one directory; the caller holds the ``ExporterLock``."""

    def __init__(self, folder: Path, boot_id: str):
        self.folder, self.boot_id = folder, boot_id
        self._known: OrderedDict[uuid.UUID, _RememberedRecord] = OrderedDict()

    def seq_of(self, session_id: uuid.UUID) -> int | None:
        """Return the end of a session's record, if it is cached."""
        known = self._known.get(session_id)
        if known is None:
            return None
        return known.tail.seq

    def export(self, session_id: uuid.UUID, *, final: bool = False) -> float | None:
        """Write a bounded part of what a record lacks; return the seconds until the next part is due, None if done.

        ``final`` writes the snapshot now, even if one was written a moment ago. Raises OSError; what was written is
        valid, and the next call continues from there.
        """
        files = SessionFiles(self.folder, session_id)
        try:
            return self._export(files, final=final)
        except BaseException:
            self._known.pop(session_id, None)  # a failed write may have changed the file: read its end again
            raise

    def _export(self, files: SessionFiles, *, final: bool) -> float | None:
        known = self._find(files)
        if known is None:
            files.remove()  # the session was deleted meanwhile
            return None
        events = _load_events(files.session_id, known.tail.seq)
        if events:
            known.tail = files.append(known.tail, events)
        # A full batch: there may be more lines, so the snapshot is not due yet.
        if len(events) == EVENT_BATCH:
            return 0.0
        wait = known.snapshot_at + SNAPSHOT_EVERY - time.monotonic()
        if wait > 0 and not final:
            return wait
        if not self._write_snapshot(files, known):
            files.remove()
            self._known.pop(files.session_id)
        return None

    def _find(self, files: SessionFiles) -> _RememberedRecord | None:
        """Return the end of the record if it belongs to this log; else set the record aside, as after a restore."""
        known = self._known.get(files.session_id)
        if known is None:
            if not TaskSession.objects.filter(id=files.session_id).exists():
                return None
            tail = files.tail()
            if tail.event is not None and not is_in_log(files.session_id, tail.event):
                files.set_aside()
                tail = Tail(None, 0)
            known = self._known[files.session_id] = _RememberedRecord(tail)
            if len(self._known) > REMEMBERED_SESSIONS:
                self._known.popitem(last=False)
        self._known.move_to_end(files.session_id)
        return known

    def _write_snapshot(self, files: SessionFiles, known: _RememberedRecord) -> bool:
        snapshot = portable_snapshot.build_snapshot(files.session_id, self.boot_id)
        if snapshot is None:
            return False
        _write_contents(files)  # before the snapshot that names them
        tokens = portable_snapshot.token_rows(files.session_id)
        if tokens["tokens"] and tokens != known.tokens:
            portable_record.replace_file(portable_record.write_draft(files.tokens, tokens), files.tokens)
            known.tokens = tokens
        draft = portable_record.write_draft(files.snapshot, snapshot)
        crash_points.reached("export.snapshot_drafted", files.session_id)
        portable_record.replace_file(draft, files.snapshot)
        crash_points.reached("export.snapshot_replaced", files.session_id)
        known.snapshot_at = time.monotonic()
        return True


def _write_contents(files: SessionFiles) -> None:
    stored = Attachment.objects.filter(session_id=files.session_id)
    for digest in files.missing_contents(stored.values_list("sha256", flat=True)):
        content = stored.filter(sha256=digest).values_list("content", flat=True).first()
        if content is not None:
            files.add_content(digest, bytes(content))


def _load_events(session_id: uuid.UUID, after: int) -> list[LogEvent]:
    rows = SessionEvent.objects.filter(session_id=session_id, seq__gt=after).order_by("seq")[:EVENT_BATCH]
    return [LogEvent(*row) for row in rows.values_list("seq", "at", "name", "payload", "once")]


def is_in_log(session_id: uuid.UUID, event: LogEvent) -> bool:
    """Return whether the session's log contains exactly this event."""
    return SessionEvent.objects.filter(session_id=session_id, seq=event.seq, name=event.name, at=event.at).exists()
