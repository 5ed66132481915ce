"""The newest lines of many logs in one query, as the text that is sent; stored JSON is passed through.

The text of a line is the object of ``services.feed.event_json``.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from django.db import connection

from sessions_app.models import TaskSession, wakeups

PAGE: Final = 200
"""Lines of one log in one batch, so that none keeps the others waiting."""
BATCH: Final = 1000
"""Lines of one batch."""
BATCH_BYTES: Final = 1024 * 1024
"""A batch ends with the line that reaches it."""

# Numbers of a log have no holes, so a range of them bounds what each log gives.
_SQLITE: Final = """
SELECT e.session_id, e.seq, e.name, e.payload, e.at
FROM json_each(%s) AS w CROSS JOIN session_events AS e
WHERE e.session_id = w.key AND e.seq > w.value AND e.seq <= w.value + %s
ORDER BY w.id, e.seq LIMIT %s
"""
_POSTGRESQL: Final = """
SELECT e.session_id, e.seq, e.name, e.payload::text, e.at
FROM unnest(%s::uuid[], %s::bigint[]) WITH ORDINALITY AS w(id, after, place)
JOIN session_events AS e ON e.session_id = w.id AND e.seq > w.after AND e.seq <= w.after + %s
ORDER BY w.place, e.seq LIMIT %s
"""


@dataclass(frozen=True, slots=True)
class Log:
    """The log of one session."""

    session_id: uuid.UUID
    task_id: uuid.UUID
    epoch: str

    @classmethod
    def of(cls, session: TaskSession) -> Log:
        """The log of a session's row."""
        return cls(session.id, session.task_id, session.epoch)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a log, encoded once for everybody."""

    log: Log
    seq: int
    text: str = field(repr=False)
    size: int
    """Bytes of the text."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at the database has found."""

    version: str
    """Of the database, for the next look."""
    lines: list[Line] = field(default_factory=list)
    """By log, in the order of the cursors, then by seq."""
    born: list[Log] = field(default_factory=list)
    """Logs of watched tasks that have no cursor yet."""
    more: bool = False
    """There may be more to read at once."""


def look(version: str | None, cursors: Mapping[Log, int], tasks: Collection[uuid.UUID]) -> Look:
    """Read what is behind ``cursors`` if the database has changed since ``version``, and new sessions of ``tasks``.

    At most three statements, whoever watches. For one thread alone: versions belong to its connection.
    """
    now = wakeups.database_version()
    if now == version:
        return Look(now)
    born = _born(tasks, cursors)
    lines, more = read_behind({**cursors, **dict.fromkeys(born, 0)})
    return Look(now, lines, born, more)


def read_behind(cursors: Mapping[Log, int]) -> tuple[list[Line], bool]:
    """Lines behind each log's cursor, oldest first, and whether there may be more; one statement.

    Logs that come first in ``cursors`` are served first.
    """
    if not cursors:
        return [], False
    by_key = {_key(log): log for log in cursors}
    lines: list[Line] = []
    size = 0
    with connection.cursor() as cursor:
        cursor.execute(*_statement(cursors))
        for key, seq, name, payload, at in cursor:
            lines.append(_line(by_key[key], seq, name, payload, at))
            size += lines[-1].size
            if size >= BATCH_BYTES:
                break
    return lines, len(lines) >= PAGE or size >= BATCH_BYTES


def _statement(cursors: Mapping[Log, int]) -> tuple[str, list[Any]]:
    if connection.vendor == "sqlite":
        places = orjson.dumps({_key(log): seq for log, seq in cursors.items()}).decode()
        return _SQLITE, [places, PAGE, BATCH]
    return _POSTGRESQL, [[log.session_id for log in cursors], list(cursors.values()), PAGE, BATCH]


def _key(log: Log) -> Any:
    """A session's id as the database gives it to a raw query."""
    return log.session_id.hex if connection.vendor == "sqlite" else log.session_id


def _line(log: Log, seq: int, name: str, payload: str, at: datetime) -> Line:
    when = (at if at.tzinfo else at.replace(tzinfo=UTC)).isoformat()
    text = (
        f'{{"type":"event","event":{orjson.dumps(name).decode()},"seq":{seq},"epoch":"{log.epoch}",'
        f'"session_id":"{log.session_id}","task_id":"{log.task_id}","at":"{when}","payload":{payload}}}'
    )
    return Line(log, seq, text, len(text) if text.isascii() else len(text.encode()))


def _born(tasks: Collection[uuid.UUID], known: Mapping[Log, int]) -> list[Log]:
    if not tasks:
        return []
    rows = TaskSession.objects.filter(task_id__in=tasks).values_list("id", "task_id", "epoch")
    return [log for log in (Log(*row) for row in rows) if log not in known]
