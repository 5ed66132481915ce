"""Where a client of a session's stream begins to read, and the snapshot that it gets in place of missing lines."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, Final

from django.contrib.auth.models import User

from sessions_app.kernel.services.errors import NotFound
from sessions_app.models import TaskSession
from sessions_app.sessions.services.queries import visible_sessions
from sessions_app.sessions.services.status import session_status
from sessions_app.stream.live.hub import SessionLog

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
