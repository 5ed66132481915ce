"""The exporter's cursor: how far the logs of all sessions have been exported."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import connection
from django.db.models import Max

from executors_app.machine import crash_points
from sessions_app.models import SessionEvent
from sessions_app.portable.record import CURSOR_FILE, record_directory, replace_file, write_draft
from sessions_app.portable.rules.lines import BadLine, format_time, parse_time

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
            "session_id": self.session_id and str(self.session_id),
            "seq": self.seq,
            "at": self.at and format_time(self.at),
            "behind": list(map(str, self.behind)),
        }

    @classmethod
    def from_json(cls, stored: Any) -> ExportCursor:
        """Parse a file's object; raises ValueError, KeyError, TypeError or BadLine."""
        session_id, at = stored["session_id"], stored["at"]
        return cls(
            number=int(stored["number"]),
            session_id=uuid.UUID(session_id) if session_id else None,
            seq=int(stored["seq"]),
            at=parse_time(at) if at else None,
            behind=tuple(map(uuid.UUID, stored["behind"][:MAX_BEHIND])),
        )


def read_cursor() -> ExportCursor:
    """Read the stored cursor; at the beginning if there is none, or it is unreadable."""
    try:
        path = record_directory() / CURSOR_FILE
        return ExportCursor.from_json(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, BadLine):
        return ExportCursor()


def write_cursor(cursor: ExportCursor) -> None:
    """Store the cursor; raises OSError."""
    path = record_directory() / CURSOR_FILE
    draft = write_draft(path, cursor.to_json())
    crash_points.reached("export.cursor_drafted")
    replace_file(draft, path)
    crash_points.reached("export.cursor_replaced")


def sessions_behind(
    cursor: ExportCursor, seq_of: Callable[[uuid.UUID], int | None]
) -> tuple[set[uuid.UUID], ExportCursor]:
    """Return the sessions with events after the cursor, at most ``CURSOR_BATCH`` events' worth, and the new cursor.

    ``seq_of`` returns the last ``seq`` of a session's record, if it is cached.
    """
    rows = SessionEvent.objects.filter(id__gt=cursor.number).order_by("id")
    new = list(rows.values_list("id", "session_id")[:CURSOR_BATCH])
    changed = {session_id for _, session_id in new}
    # SQLite has one writer at a time, so its ids commit in order; PostgreSQL commits them in any order.
    if connection.vendor == "postgresql" and cursor.number:
        late = SessionEvent.objects.filter(id__gt=cursor.number - LATE_COMMIT_MARGIN, id__lte=cursor.number)
        for session_id, seq in late.values("session_id").annotate(last=Max("seq")).values_list("session_id", "last"):
            if (seq_of(session_id) or 0) < seq:
                changed.add(session_id)
    if not new:
        return changed, cursor
    last_number, _ = new[-1]
    return changed, cursor_at(last_number)


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
