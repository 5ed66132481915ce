"""The log of a session: append-only, gap-free, the truth that every page is fed from."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection, models, transaction
from django.utils import timezone

from executors_app.json_fields import ObjectField
from sessions_app.models import wakeups
from sessions_app.models.bulk import insert_rows
from sessions_app.models.scoping import TeamModel
from sessions_app.models.session import TaskSession, session_key


class AppendOnlyError(Exception):
    """A line of a session's log cannot be changed."""


class SessionEvent(TeamModel):
    """One immutable line; ``seq`` rises by one per session, given by ``append`` alone (rule 5)."""

    team_path = "session__task__team"

    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="events")
    seq = models.BigIntegerField()
    name = models.CharField(max_length=64)
    payload = ObjectField(default=dict)
    at = models.DateTimeField()
    once = models.CharField(max_length=128, null=True, blank=True, unique=True)
    """Names something that may be said once, as ``run.interrupted:<run id>``."""

    class Meta(TeamModel.Meta):
        abstract = False
        db_table = "session_events"
        ordering = ("session", "seq")
        constraints = (models.UniqueConstraint(fields=("session", "seq"), name="one_event_per_seq"),)

    def __str__(self) -> str:
        return f"{self.seq} {self.name}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Refuse to change what was said; new lines come from ``append``."""
        if not self._state.adding:
            raise AppendOnlyError(AppendOnlyError.__doc__)
        super().save(*args, **kwargs)


@dataclass(slots=True)
class NewEvent:
    """An event on its way into the log; ``seq`` is filled in by ``append``."""

    name: str
    payload: dict[str, Any] = field(default_factory=dict)
    at: datetime | None = None
    once: str | None = None
    seq: int = 0


def reserve(session_id: uuid.UUID | str, count: int) -> int:
    """Take ``count`` numbers of a session's log; returns the first. Inside a transaction only.

    The row stays locked until the commit, so the order of commits is the order of ``seq``.
    """
    sql = "UPDATE task_sessions SET last_seq = last_seq + %s WHERE id = %s RETURNING last_seq"
    key = TaskSession._meta.pk.get_db_prep_value(session_key(session_id), connection)
    with connection.cursor() as cursor:
        cursor.execute(sql, [count, key])
        row = cursor.fetchone()
    if row is None:
        raise TaskSession.DoesNotExist(f"no session {session_id}")
    return int(row[0]) - count + 1


def append(session_id: uuid.UUID | str, events: Sequence[NewEvent]) -> int:
    """Write events at the end of a session's log, in the caller's transaction; returns the last seq.

    The one writer of the log, for everybody. Others are woken after the commit.
    """
    if not transaction.get_connection().in_atomic_block:
        raise transaction.TransactionManagementError("append() wants a transaction")
    if not events:
        return 0
    first = reserve(session_id, len(events))
    return write_reserved(session_id, first, events)


def write_reserved(session_id: uuid.UUID | str, first: int, events: Iterable[NewEvent]) -> int:
    """Write events under numbers that ``reserve`` has given; returns the last seq."""
    now, seq, key = timezone.now(), first - 1, session_key(session_id)
    rows = []
    for seq, event in enumerate(events, start=first):
        event.seq = seq
        rows.append((key, seq, event.name, event.payload, event.at or now, event.once))
    insert_rows(SessionEvent, ("session_id", "seq", "name", "payload", "at", "once"), rows)
    wakeups.ring_on_commit()
    return seq
