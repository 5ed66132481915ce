"""Read session logs for sockets: the lines behind many cursors in one query, and where a client begins to read."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from django.contrib.auth.models import User
from django.db import connection

from sessions_app.kernel import wakeups
from sessions_app.kernel.services.errors import NotFound
from sessions_app.models import TaskSession
from sessions_app.sessions.services.queries import visible_sessions
from sessions_app.sessions.services.status import session_status

LOG_BATCH_LINES: Final = 200
"""Lines of one log in one batch at most, so that a long log does not delay the others."""
BATCH_LINES: Final = 1000
"""Lines of one batch at most."""
BATCH_BYTES: Final = 1024 * 1024
"""Bytes of one batch; it ends with the line that reaches this size."""

# ``seq`` has no gaps, so a range of numbers limits how many lines each log contributes.
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
    """Identifies the log of one session."""

    session_id: uuid.UUID
    task_id: uuid.UUID
    epoch: str

    @classmethod
    def of(cls, session: TaskSession) -> SessionLog:
        """Return the identity of a session's log."""
        return cls(session.id, session.task_id, session.epoch)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log, encoded once for all clients."""

    log: SessionLog
    seq: int
    text: str = field(repr=False)
    size: int
    """Size of the text in bytes."""


@dataclass(frozen=True, slots=True)
class LogChanges:
    """The result of one read for all subscribers."""

    version: str
    """The version of the database, to pass to the next ``load_changes``."""
    lines: list[LogLine] = field(default_factory=list)
    """By log, in the order of the cursors, then by seq."""
    new_logs: list[SessionLog] = field(default_factory=list)
    """Logs of watched tasks that have no cursor yet."""
    more: bool = False
    """Whether there may be more to read now."""


def load_changes(version: str | None, cursors: Mapping[SessionLog, int], tasks: Collection[uuid.UUID]) -> LogChanges:
    """Read the lines behind ``cursors`` and the new sessions of ``tasks``, if the database changed since ``version``.

    It takes at most three statements, however many clients follow. Always call it on the same thread, because a
    version belongs to its connection.
    """
    # Read first: a change that commits during the queries below gives the next call another version.
    now = wakeups.database_version()
    if now == version:
        return LogChanges(now)
    new_logs = _load_new_sessions(tasks, cursors)
    lines, more = load_lines_after({**cursors, **dict.fromkeys(new_logs, 0)})
    return LogChanges(now, lines, new_logs, more)


def load_lines_after(cursors: Mapping[SessionLog, int]) -> tuple[list[LogLine], bool]:
    """Return the lines behind each log's cursor, oldest first, and whether there may be more; one statement.

    Logs that come first in ``cursors`` are read first, which matters when the batch is full before the last one.
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
    """Return a session's id as a raw query returns it."""
    if connection.vendor == "sqlite":
        return log.session_id.hex
    return log.session_id


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
"""Messages in a snapshot at most; ``GET messages/`` returns the earlier ones."""


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where a client's stream begins."""

    log: SessionLog
    head: int
    """The log's last seq."""
    seq: int
    """The stream begins behind this seq."""
    snapshot: dict[str, Any] | None
    """Sent first in place of missing lines, as of ``seq``; None if the client can get every line that it lacks."""


def find_session(user: User, session_id: uuid.UUID) -> TaskSession:
    """Return a session of the user's teams. Raises NotFound for any other."""
    found: TaskSession | None = visible_sessions(user).filter(id=session_id).first()
    if found is None:
        raise NotFound
    return found


def start_stream_at(session: TaskSession, after: int | None, epoch: str | None = None) -> StreamStart:
    """Return where a client begins that has the lines up to ``after`` of the log with this ``epoch``.

    It gets a snapshot if ``after`` is None (malformed), if the epoch is another one, or if lines behind ``after`` no
    longer exist.
    """
    if after is not None and epoch in (None, "", session.epoch) and _has_all_lines_after(session, after):
        return StreamStart(SessionLog.of(session), session.last_seq, after, None)
    snapshot = log_snapshot(session)
    return StreamStart(SessionLog.of(session), session.last_seq, snapshot["last_seq"], snapshot)


def _has_all_lines_after(session: TaskSession, after: int) -> bool:
    """Whether every line behind ``after`` still exists."""
    if not 0 <= after < session.last_seq:
        return after == session.last_seq
    return session.events.filter(seq=after + 1).exists()


def log_snapshot(session: TaskSession) -> dict[str, Any]:
    """Return ``{messages, has_older, status, last_seq, epoch}``: the newest messages as they were at ``last_seq``.

    Messages, texts and ``last_seq`` come from one statement. They belong together exactly, so that later events can
    be applied to them.
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
    for message in messages.values():
        message["text_length"] = len(message["text"])
    return {
        "messages": list(messages.values()),
        "has_older": session.messages.filter(seq__lt=first).exists(),
        "status": session_status(session),
        "last_seq": last_seq,
        "epoch": session.epoch,
    }
