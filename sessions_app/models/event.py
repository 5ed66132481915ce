"""The log of a session: append-only, gap-free, the truth that every page is fed from."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection, models, transaction
from django.utils import timezone

from executors_app.json_fields import ObjectField
from sessions_app.accounts.team_scope import TeamModel
from sessions_app.models import wakeups
from sessions_app.models.bulk import Row, insert_rows
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


def _reserve_numbers(sessions: Sequence[uuid.UUID], count: int) -> dict[uuid.UUID, int]:
    """Take ``count`` numbers in the log of each session, whose rows the caller has locked; the first of each.

    They stay locked until the commit, so the order of commits is the order of ``seq``.
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
    """Write events at the end of a session's log, in the caller's transaction; returns the last seq.

    Others are woken after the commit.
    """
    append_all_events({session_key(session_id): events})
    return events[-1].seq if events else 0


def append_all_events(said: Mapping[uuid.UUID, Sequence[NewEvent]]) -> None:
    """``append`` for several sessions, whose rows the caller has locked. The one writer of the log, for everybody."""
    if not transaction.get_connection().in_atomic_block:
        raise transaction.TransactionManagementError("append() wants a transaction")
    alike = defaultdict(list)
    for key, events in said.items():
        if events:
            alike[len(events)].append(key)
    rows: list[Row] = []
    for count, sessions in alike.items():
        for key, first in _reserve_numbers(sessions, count).items():
            rows += _numbered(key, first, said[key])
    _write(rows)


def write_numbered_events(session_id: uuid.UUID | str, first: int, events: Iterable[NewEvent]) -> int:
    """Write events of a log that is brought in, under the numbers they had from ``first`` on; returns the last seq."""
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
