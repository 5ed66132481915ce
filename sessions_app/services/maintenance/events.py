"""Old lines of the logs of closed sessions; only what the portable record has, word for word."""

from __future__ import annotations

from typing import Final

from django.conf import settings
from django.db.models import Exists, OuterRef

from sessions_app.domain.portable.lines import LogEvent
from sessions_app.models import SessionEvent, TaskSession
from sessions_app.services.maintenance.files import CLOSED
from sessions_app.services.maintenance.work import Work, before_now
from sessions_app.services.portable import record as portable_record
from sessions_app.services.portable.reading import Reader

PIECE: Final = 500
"""Lines that are compared at once."""


def events(work: Work) -> None:
    """Remove the log of sessions that were closed long ago, but for its last line, by which the record is known.

    Messages, prompts and receipts stay, so pages show what they did.
    """
    cutoff = before_now(settings.KANDEV_EVENT_RETENTION)
    if cutoff is None:
        return
    lines = SessionEvent.objects.filter(session=OuterRef("pk"), seq__lt=OuterRef("last_seq"))
    old = TaskSession.objects.filter(Exists(lines), state__in=CLOSED, updated_at__lt=cutoff)
    # By chance, so that those that stay do not use up every run.
    for session_id in list(old.order_by("?").values_list("id", flat=True)):
        if work.is_over:
            return
        session = TaskSession.objects.filter(id=session_id).first()
        if session is not None:
            _of_session(work, session)


def _of_session(work: Work, session: TaskSession) -> None:
    problem = _unproven(session)
    if problem:
        work.kept += 1
        work.note(f"the log of session {session.id} stays: {problem}", session_id=str(session.id))
        return
    work.remove_rows(SessionEvent.objects.filter(session=session, seq__lt=session.last_seq))


def _unproven(session: TaskSession) -> str:
    """Why the portable record is no proof that nothing is lost; empty where it is."""
    reader = Reader(portable_record.directory(), str(session.id))
    recorded = {line.event.seq: line.event for line in reader.log()}
    if reader.findings:
        found = reader.findings[0]
        return f"line {found.line} of its record is damaged ({found.problem})"
    after = 0
    rows = SessionEvent.objects.filter(session=session).order_by("seq")
    while piece := list(rows.filter(seq__gt=after).values_list("seq", "at", "name", "payload", "once")[:PIECE]):
        for row in piece:
            if recorded.get(row[0]) != LogEvent(*row):
                return f"its record has not line {row[0]} as it is"
        after = piece[-1][0]
    return "" if after == session.last_seq else "its log has no end"
