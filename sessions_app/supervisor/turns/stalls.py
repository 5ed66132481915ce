"""Turns in which nothing is heard of the agent: shown, and never ended for it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import OuterRef, Q, Subquery
from django.utils import timezone

from sessions_app.domain.states import RunState
from sessions_app.models import Lease, LeaseLost, Run, SessionEvent, writing
from sessions_app.supervisor.ingest.conversation import Conversation

log = logging.getLogger(__name__)
_OF_THE_AGENT = (
    Q(name__startswith="session.message.")
    | Q(name__startswith="session.run.")
    | Q(name__startswith="session.permission.")
)
"""Events that tell of the turn, and not of what is asked of it meanwhile."""


def notice_stalls(held: Mapping[uuid.UUID, Lease]) -> int:
    """Say ``session.run.stalled`` once of every silence that has become too long, of these sessions; how many.

    Silence is measured in the log, from the time of the agent's last word, whoever was there to hear it.
    """
    if not settings.KANDEV_STALL_NOTICE or not held:
        return 0
    since = timezone.now() - timedelta(seconds=settings.KANDEV_STALL_NOTICE)
    return sum(_say(run, heard, held[run.session_id]) for run, heard in _silent(since) if run.session_id in held)


def _silent(since: datetime) -> list[tuple[Run, datetime]]:
    newest = SessionEvent.objects.filter(_OF_THE_AGENT, session_id=OuterRef("session_id")).order_by("-seq")
    working = Run.objects.filter(
        state=RunState.RUNNING, has_process=True, started_at__lte=since, session__stalled_since=None
    )
    rows = working.annotate(heard=Subquery(newest.values("at")[:1])).filter(heard__lte=since)
    return [(row, row.heard) for row in rows]


def _say(run: Run, heard: datetime, lease: Lease) -> bool:
    try:
        with writing(run.session_id, lease) as draft:
            if draft.open_turn is None or draft.open_turn.id != run.id:
                return False
            draft.set(stalled_since=heard)
            tools = Conversation(draft).unfinished_tools()
            draft.say("session.run.stalled", run_id=str(run.id), since=heard.isoformat(), unfinished_tools=tools)
    except LeaseLost:
        return False
    except Exception:  # one bad session never stops the others
        log.exception("session %s: its silence could not be told", run.session_id)
        return False
    return True
