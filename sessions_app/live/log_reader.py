"""Read session logs for sockets: the newest lines of many logs in one query, and where a client begins to read."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from django.db import connection

from sessions_app.models import TaskSession, wakeups
from sessions_app.services.catalogue import visible_sessions
from sessions_app.services.errors import NotFound
from sessions_app.services.status import session_status

LOG_BATCH_LINES: Final = 200
"""Lines of one log in one batch, so that none keeps the others waiting."""
BATCH_LINES: Final = 1000
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
class SessionLog:
    """The log of one session."""

    session_id: uuid.UUID
    task_id: uuid.UUID
    epoch: str

    @classmethod
    def of(cls, session: TaskSession) -> SessionLog:
        """The log of a session's row."""
        return cls(session.id, session.task_id, session.epoch)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log, encoded once for everybody."""

    log: SessionLog
    seq: int
    text: str = field(repr=False)
    size: int
    """Bytes of the text."""


@dataclass(frozen=True, slots=True)
class LogChanges:
    """What a look at the database has found."""

    version: str
    """Of the database, for the next look."""
    lines: list[LogLine] = field(default_factory=list)
    """By log, in the order of the cursors, then by seq."""
    new_logs: list[SessionLog] = field(default_factory=list)
    """Logs of watched tasks that have no cursor yet."""
    more: bool = False
    """There may be more to read at once."""


def load_changes(version: str | None, cursors: Mapping[SessionLog, int], tasks: Collection[uuid.UUID]) -> LogChanges:
    """Read what is behind ``cursors`` if the database has changed since ``version``, and new sessions of ``tasks``.

    At most three statements, whoever watches. For one thread alone: versions belong to its connection.
    """
    now = wakeups.database_version()
    if now == version:
        return LogChanges(now)
    new_logs = _load_new_sessions(tasks, cursors)
    lines, more = load_lines_after({**cursors, **dict.fromkeys(new_logs, 0)})
    return LogChanges(now, lines, new_logs, more)


def load_lines_after(cursors: Mapping[SessionLog, int]) -> tuple[list[LogLine], bool]:
    """Lines behind each log's cursor, oldest first, and whether there may be more; one statement.

    Logs that come first in ``cursors`` are served first.
    """
    if not cursors:
        return [], False
    by_key = {_key(log): log for log in cursors}
    lines: list[LogLine] = []
    size = 0
    with connection.cursor() as cursor:
        cursor.execute(*_statement(cursors))
        for key, seq, name, payload, at in cursor:
            lines.append(_line(by_key[key], seq, name, payload, at))
            size += lines[-1].size
            if size >= BATCH_BYTES:
                break
    return lines, len(lines) >= LOG_BATCH_LINES or size >= BATCH_BYTES


def _statement(cursors: Mapping[SessionLog, int]) -> tuple[str, list[Any]]:
    if connection.vendor == "sqlite":
        places = orjson.dumps({_key(log): seq for log, seq in cursors.items()}).decode()
        return _SQLITE, [places, LOG_BATCH_LINES, BATCH_LINES]
    return _POSTGRESQL, [[log.session_id for log in cursors], list(cursors.values()), LOG_BATCH_LINES, BATCH_LINES]


def _key(log: SessionLog) -> Any:
    """A session's id as the database gives it to a raw query."""
    return log.session_id.hex if connection.vendor == "sqlite" else log.session_id


def _line(log: SessionLog, seq: int, name: str, payload: str, at: datetime) -> LogLine:
    when = (at if at.tzinfo else at.replace(tzinfo=UTC)).isoformat()
    text = (
        f'{{"type":"event","event":{orjson.dumps(name).decode()},"seq":{seq},"epoch":"{log.epoch}",'
        f'"session_id":"{log.session_id}","task_id":"{log.task_id}","at":"{when}","payload":{payload}}}'
    )
    return LogLine(log, seq, text, len(text) if text.isascii() else len(text.encode()))


def _load_new_sessions(tasks: Collection[uuid.UUID], known: Mapping[SessionLog, int]) -> list[SessionLog]:
    if not tasks:
        return []
    rows = TaskSession.objects.filter(task_id__in=tasks).values_list("id", "task_id", "epoch")
    return [log for log in (SessionLog(*row) for row in rows) if log not in known]


SNAPSHOT_MESSAGES: Final = 200
"""Of a snapshot; ``GET messages/`` has the earlier ones."""


@dataclass(frozen=True, slots=True)
class StreamStart:
    """The beginning for one client."""

    log: SessionLog
    head: int
    """The log's last seq."""
    seq: int
    """The last seq that the client need not be sent."""
    snapshot: dict[str, Any] | None
    """What it is given instead of what it lacks, as of ``seq``."""


def find_session(user: Any, session_id: uuid.UUID) -> TaskSession:
    """A session of the user's teams; NotFound for any other."""
    found: TaskSession | None = visible_sessions(user).filter(id=session_id).first()
    if found is None:
        raise NotFound
    return found


def start_stream_at(session: TaskSession, after: int | None, epoch: str | None = None) -> StreamStart:
    """Begin behind ``after`` (None: not a number), which was told of the log named ``epoch``, if any was."""
    if after is not None and epoch in (None, "", session.epoch) and _has_all_lines_after(session, after):
        return StreamStart(SessionLog.of(session), session.last_seq, after, None)
    snapshot = log_snapshot(session)
    return StreamStart(SessionLog.of(session), session.last_seq, snapshot["last_seq"], snapshot)


def _has_all_lines_after(session: TaskSession, after: int) -> bool:
    """Whether every line behind ``after`` is still there."""
    if not 0 <= after < session.last_seq:
        return after == session.last_seq
    return session.events.filter(seq=after + 1).exists()


def log_snapshot(session: TaskSession) -> dict[str, Any]:
    """``{messages, has_older, status, last_seq, epoch}``: the newest messages as they were at ``last_seq``.

    Messages, their texts and ``last_seq`` come from one statement: what was said later can be appended.
    """
    newest = session.messages.order_by("-seq").values("seq")[SNAPSHOT_MESSAGES - 1 : SNAPSHOT_MESSAGES]
    first = newest[0]["seq"] if newest else 0
    rows = session.messages.filter(seq__gte=first).order_by("seq", "parts__number")
    fields = ("id", "seq", "updated_seq", "role", "payload", "complete", "created_at")
    messages: dict[uuid.UUID, dict[str, Any]] = {}
    last_seq = session.last_seq
    for row in rows.values(*fields, "parts__text", "session__last_seq"):
        text, last_seq = row.pop("parts__text") or "", row.pop("session__last_seq")
        if row["id"] in messages:
            messages[row["id"]]["text"] += text
        else:
            created = row["created_at"].isoformat().replace("+00:00", "Z")
            messages[row["id"]] = {**row, "id": str(row["id"]), "text": text, "created_at": created}
    return {
        "messages": list(messages.values()),
        "has_older": session.messages.filter(seq__lt=first).exists(),
        "status": session_status(session),
        "last_seq": last_seq,
        "epoch": session.epoch,
    }
