"""The sessions whose start waits, for people who run the installation."""

from __future__ import annotations

from typing import Any, Final

from django.db.models import Q

from sessions_app.kernel.transactions import open_start_intent
from sessions_app.models import PLACEMENT_WAIT, QUEUED_FOR_CAPACITY, REFUSED_BY_HOST, Intent, IntentKind, TaskSession
from sessions_app.sessions.services.situations import start_wait_json

MAX_LISTED: Final = 500
"""Starts that are listed; the oldest come first."""


def list_waiting_starts() -> list[dict[str, Any]]:
    """Return the starts that wait for room, a host or a repository, with why and how many start earlier.

    A few queries for each.
    """
    marked = Q()
    for key in (QUEUED_FOR_CAPACITY, REFUSED_BY_HOST, PLACEMENT_WAIT):
        marked |= Q(payload__has_key=key)
    starts = Intent.objects.filter(marked, kind=IntentKind.START, done_at=None, claimed_generation=None)
    ids = list(starts.order_by("created_at", "id").values_list("session_id", flat=True)[:MAX_LISTED])
    queued = TaskSession.objects.filter(start_rank__isnull=False).exclude(id__in=ids).order_by("start_rank")
    ids += queued.values_list("id", flat=True)[: MAX_LISTED - len(ids)]
    rows = TaskSession.objects.select_related("executor", "task").in_bulk(ids)
    described = (_describe(rows[key]) for key in ids if key in rows)
    return [row for row in described if row is not None]


def _describe(session: TaskSession) -> dict[str, Any] | None:
    """Return one start that waits; None if it has begun meanwhile."""
    wait = start_wait_json(session, open_start_intent(session))
    if wait is None:
        return None
    return {
        "session": str(session.id),
        "task": str(session.task_id),
        "executor": session.executor.name,
        "pool": session.executor_pool,
        **wait,
    }
