"""How far the exporter is: a place in the order in which events were committed, kept beside the record.

It is a hint where to look, and a witness: a database that does not have what the record has was
restored from an older copy (rule 37).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from django.db import connection
from django.db.models import Max

from executors_app import crash_points
from sessions_app.domain.portable.lines import BadLine, time_of, time_text
from sessions_app.models import SessionEvent
from sessions_app.services.portable import record as portable_record

AT_ONCE: Final = 2000
"""Events whose sessions are looked up at once."""
STRAGGLERS: Final = 1000
"""Where transactions commit side by side, one that began this many events earlier may end later."""
MOST_BEHIND: Final = 100_000


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last event that was seen, by its row's number, and the sessions whose record is behind it."""

    number: int = 0
    session_id: uuid.UUID | None = None
    seq: int = 0
    at: datetime | None = None
    behind: tuple[uuid.UUID, ...] = ()

    def leaving(self, behind: Iterable[uuid.UUID]) -> Cursor:
        """The same with other sessions behind."""
        return replace(self, behind=tuple(behind))

    def to_json(self) -> dict[str, Any]:
        """For the file."""
        return {
            "number": self.number,
            "session_id": str(self.session_id) if self.session_id else None,
            "seq": self.seq,
            "at": time_text(self.at) if self.at else None,
            "behind": [str(one) for one in self.behind],
        }

    @classmethod
    def from_json(cls, told: Any) -> Cursor:
        """What a file tells; ValueError, KeyError, TypeError or BadLine for anything else."""
        session_id = told["session_id"]
        return cls(
            number=int(told["number"]),
            session_id=uuid.UUID(session_id) if session_id else None,
            seq=int(told["seq"]),
            at=time_of(told["at"]) if told["at"] else None,
            behind=tuple(uuid.UUID(one) for one in told["behind"][:MOST_BEHIND]),
        )


def read() -> Cursor:
    """The cursor of the last exporter; at the beginning where there is none that can be read."""
    try:
        return Cursor.from_json(json.loads((portable_record.directory() / portable_record.CURSOR).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, BadLine):
        return Cursor()


def write(cursor: Cursor) -> None:
    """Keep it; raises OSError."""
    path = portable_record.directory() / portable_record.CURSOR
    draft = portable_record.write_draft(path, cursor.to_json())
    crash_points.reached("export.cursor_drafted")
    portable_record.put(draft, path)
    crash_points.reached("export.cursor_replaced")


def look(cursor: Cursor, seq_of: Callable[[uuid.UUID], int | None]) -> tuple[set[uuid.UUID], Cursor]:
    """The sessions with events behind the cursor, at most ``AT_ONCE`` of them, and the cursor behind those.

    ``seq_of`` says how far a record is known to be.
    """
    rows = SessionEvent.objects.filter(id__gt=cursor.number).order_by("id").values_list("id", "session_id")[:AT_ONCE]
    new = list(rows)
    changed = {session_id for _, session_id in new}
    if connection.vendor == "postgresql" and cursor.number:
        late = SessionEvent.objects.filter(id__gt=cursor.number - STRAGGLERS, id__lte=cursor.number)
        for session_id, seq in late.values("session_id").annotate(last=Max("seq")).values_list("session_id", "last"):
            if (seq_of(session_id) or 0) < seq:
                changed.add(session_id)
    if not new:
        return changed, cursor
    number = new[-1][0]
    return changed, place_of(number)


def place_of(number: int) -> Cursor:
    """The cursor at the event with this number."""
    row = SessionEvent.objects.filter(id=number).first()
    return Cursor(number, row.session_id, row.seq, row.at) if row else Cursor(number)


def end() -> Cursor:
    """The cursor behind everything that the database has."""
    return place_of(_highest_number())


def has_everything(cursor: Cursor) -> bool:
    """Whether the database may have all that the exporter has seen; deleted sessions are no proof of the contrary."""
    if not cursor.number:
        return True
    if _highest_number() < cursor.number:
        return False
    row = SessionEvent.objects.filter(id=cursor.number).values_list("session_id", "seq", "at").first()
    return row is None or cursor.at is None or row == (cursor.session_id, cursor.seq, cursor.at)


def _highest_number() -> int:
    """The highest number that an event of this database ever had."""
    table = SessionEvent._meta.db_table
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_get_serial_sequence(%s, 'id')", [table])
            (sequence,) = cursor.fetchone()
            cursor.execute(f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {sequence}")  # noqa: S608
        else:
            cursor.execute("SELECT seq FROM sqlite_sequence WHERE name = %s", [table])
        row = cursor.fetchone()
    return int(row[0]) if row else 0
