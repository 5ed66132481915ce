"""The log of a session: append-only and without gaps; every page is built from it."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection, models, transaction
from django.utils import timezone

from executors_app.orm import ObjectField
from sessions_app.accounts.team_scope import TeamModel
from sessions_app.events import Event
from sessions_app.kernel import wakeups
from sessions_app.kernel.bulk import Row, insert_rows
from sessions_app.kernel.models.session import TaskSession, session_key


class AppendOnlyError(Exception):
    """A line of a session's log cannot be changed."""


class SessionEvent(TeamModel):
    """One immutable line of a session's log; ``append_events`` gives each the next ``seq``, without gaps."""

    team_path = "session__task__team"

    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="events")
    seq = models.BigIntegerField()
    name = models.CharField(max_length=64)
    payload = ObjectField(default=dict)
    at = models.DateTimeField()
    once = models.CharField(max_length=128, null=True, blank=True, unique=True)
    """A unique name of something that may be recorded only once, such as ``run.interrupted:<run id>``."""

    class Meta(TeamModel.Meta):
        db_table = "session_events"
        ordering = ("session", "seq")
        constraints = (models.UniqueConstraint(fields=("session", "seq"), name="one_event_per_seq"),)

    def __str__(self) -> str:
        return f"{self.seq} {self.name}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Refuse to change a line; ``append_events`` writes new ones."""
        if not self._state.adding:
            raise AppendOnlyError(AppendOnlyError.__doc__)
        super().save(*args, **kwargs)


@dataclass(slots=True)
class NewEvent:
    """An event on its way into the log; ``append_events`` fills in ``seq``."""

    name: str
    payload: dict[str, Any] = field(default_factory=dict)
    at: datetime | None = None
    once: str | None = None
    seq: int = 0
    content: Event | None = None
    """The event as it was recorded; None for one that is copied from elsewhere, or whose content is still missing."""

    def fill(self, content: Event) -> None:
        """Set the content of an event whose place in the log was reserved."""
        self.content, self.payload = content, content.payload()


def _reserve_numbers(sessions: Sequence[uuid.UUID], count: int) -> dict[uuid.UUID, int]:
    """Reserve ``count`` numbers in the log of each session and return the first of each.

    The caller has locked the sessions' rows, and they stay locked until the commit. The order of commits is therefore
    the order of ``seq``: a reader who has seen a number will never find a smaller one appear later.
    """
    places = ", ".join(["%s"] * len(sessions))
    sql = f"UPDATE task_sessions SET last_seq = last_seq + %s WHERE id IN ({places}) RETURNING id, last_seq"  # noqa: S608
    keys = [TaskSession._meta.pk.get_db_prep_value(key, connection) for key in sessions]
    with connection.cursor() as cursor:
        cursor.execute(sql, [count, *keys])
        firsts = {uuid.UUID(str(key)): int(last) - count + 1 for key, last in cursor.fetchall()}
    for key in sessions:
        if key not in firsts:
            raise TaskSession.DoesNotExist(f"no session {key}")
    return firsts


def append_events(session_id: uuid.UUID | str, events: Sequence[NewEvent]) -> int:
    """Append events to a session's log in the caller's transaction; return the last ``seq``.

    Other processes are woken after the commit.
    """
    append_all_events({session_key(session_id): events})
    if events:
        return events[-1].seq
    return 0


def append_all_events(events_by_session: Mapping[uuid.UUID, Sequence[NewEvent]]) -> None:
    """Append events to the logs of several sessions, whose rows the caller has locked. All writes go through here."""
    if not transaction.get_connection().in_atomic_block:
        raise transaction.TransactionManagementError("append_all_events() must run in a transaction")
    by_count = defaultdict(list)  # one statement numbers all sessions with equally many events
    for key, events in events_by_session.items():
        if events:
            by_count[len(events)].append(key)
    rows: list[Row] = []
    for count, sessions in by_count.items():
        for key, first in _reserve_numbers(sessions, count).items():
            rows += _numbered(key, first, events_by_session[key])
    _write(rows)


def write_numbered_events(session_id: uuid.UUID | str, first: int, events: Iterable[NewEvent]) -> int:
    """Write imported events under their original numbers, from ``first`` on; return the last ``seq``."""
    rows = _numbered(session_key(session_id), first, events)
    _write(rows)
    return first + len(rows) - 1


def _numbered(session_id: uuid.UUID, first: int, events: Iterable[NewEvent]) -> list[Row]:
    now, rows = timezone.now(), list[Row]()
    for seq, event in enumerate(events, start=first):
        event.seq = seq
        rows.append((session_id, seq, event.name, event.payload, event.at or now, event.once))
    return rows


def _write(rows: Sequence[Row]) -> None:
    if rows:
        insert_rows(SessionEvent, ("session_id", "seq", "name", "payload", "at", "once"), rows)
        wakeups.notify_on_commit()
