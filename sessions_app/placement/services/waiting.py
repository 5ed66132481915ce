"""Which starts wait for room on an executor, alone or as one of its pool."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from django.db.models import Q, QuerySet

from executors_app import capacity
from executors_app.models import Executor
from sessions_app.models import FITS, QUEUED_FOR_CAPACITY, Intent, IntentKind, TaskSession


def waiting_starts() -> QuerySet[Intent]:
    """Return the starts that wait for room, and that no supervisor has begun."""
    queued: dict[str, Any] = {f"payload__{QUEUED_FOR_CAPACITY}": True}
    return Intent.objects.filter(kind=IntentKind.START, done_at=None, claimed_generation=None, **queued)


def waits_for(executor_id: uuid.UUID, pool: str) -> Q:
    """Return the condition of starts that wait for room on an executor, also of those that others of its pool fit."""
    alone = Q(session__executor=executor_id) & ~Q(payload__has_key=FITS)
    if not pool:
        return alone
    return alone | _fits(executor_id)


def waits_where(executor: Executor) -> Q:
    """Return the condition of starts that wait for the same room as sessions of an executor."""
    alone = Q(session__executor__in=capacity.executors_sharing_room(executor)) & ~Q(payload__has_key=FITS)
    if not executor.pool:
        return alone
    return alone | _fits(executor.id)


def waits_like(start: Intent, session: TaskSession) -> Q:
    """Return the condition of starts that wait for the same room as this one of a session."""
    fits: Iterable[str] = start.payload.get(FITS) or ()
    if not fits:
        return waits_where(session.executor)
    condition = Q()
    for executor_id in fits:
        condition |= waits_for(uuid.UUID(executor_id), session.executor_pool)
    return condition


def _fits(executor_id: uuid.UUID) -> Q:
    return Q(**{f"payload__{FITS}__{executor_id}": True})
