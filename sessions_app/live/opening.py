"""Where a client begins to read a log: behind the seq it has, or with a snapshot where that cannot be."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, Final

from sessions_app.live.lines import Log
from sessions_app.models import TaskSession
from sessions_app.services.catalogue import visible_sessions
from sessions_app.services.errors import NotFound
from sessions_app.services.status import session_status

MESSAGES: Final = 200
"""Of a snapshot; ``GET messages/`` has the earlier ones."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The beginning for one client."""

    log: Log
    head: int
    """The log's last seq."""
    seq: int
    """The last seq that the client need not be sent."""
    snapshot: dict[str, Any] | None
    """What it is given instead of what it lacks, as of ``seq``."""


def find(user: Any, session_id: uuid.UUID) -> TaskSession:
    """A session of the user's teams; NotFound for any other."""
    found: TaskSession | None = visible_sessions(user).filter(id=session_id).first()
    if found is None:
        raise NotFound
    return found


def opening(session: TaskSession, after: int | None, epoch: str | None = None) -> Opening:
    """Begin behind ``after`` (None: not a number), which was told of the log named ``epoch``, if any was."""
    if after is not None and epoch in (None, "", session.epoch) and _is_kept(session, after):
        return Opening(Log.of(session), session.last_seq, after, None)
    snapshot = snapshot_of(session)
    return Opening(Log.of(session), session.last_seq, snapshot["last_seq"], snapshot)


def _is_kept(session: TaskSession, after: int) -> bool:
    """Whether every line behind ``after`` is still there."""
    if not 0 <= after < session.last_seq:
        return after == session.last_seq
    return session.events.filter(seq=after + 1).exists()


def snapshot_of(session: TaskSession) -> dict[str, Any]:
    """``{messages, has_older, status, last_seq, epoch}``: the newest messages as they were at ``last_seq``.

    Messages, their texts and ``last_seq`` come from one statement: what was said later can be appended.
    """
    newest = session.messages.order_by("-seq").values("seq")[MESSAGES - 1 : MESSAGES]
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
