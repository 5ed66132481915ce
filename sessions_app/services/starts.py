"""Why a session that is to be started is not yet: its place among those that wait, in numbers for people."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.db.models import Q

from executors_app import capacity
from sessions_app.domain import admission
from sessions_app.domain.admission import WaitReason
from sessions_app.models import QUEUED_FOR_CAPACITY, Intent, IntentKind, TaskSession


def start_wait(session: TaskSession, open_start: Intent | None) -> dict[str, Any] | None:
    """``{reason, before}``: ``turn`` or ``capacity``, and how many are before it; None where it does not wait."""
    if open_start is not None and open_start.payload.get(QUEUED_FOR_CAPACITY):
        return {"reason": str(WaitReason.CAPACITY), "before": _ordered_before(session, open_start)}
    if session.start_rank is None:
        return None
    reason = WaitReason.CAPACITY if _is_full(session) else WaitReason.TURN
    return {"reason": str(reason), "before": before(session)}


def before(session: TaskSession) -> int:
    """How many wait before it, by the order in which turns are given."""
    rank = session.start_rank or 0
    waiting = TaskSession.objects.filter(start_rank__isnull=False)
    line = waiting.filter(start_rank__lt=0) if rank < 0 else waiting.filter(start_rank__gt=0)
    team = session.task.team_id
    mine = line.filter(task__team_id=team, start_rank__lt=rank).count()
    others = Counter(line.exclude(task__team_id=team).values_list("task__team_id", flat=True))
    urgent = waiting.filter(start_rank__lt=0).count() if rank > 0 else 0
    return admission.before(rank, mine, others, urgent)


def _ordered_before(session: TaskSession, order: Intent) -> int:
    earlier = Q(**{f"payload__{QUEUED_FOR_CAPACITY}": True}, created_at__lt=order.created_at, claimed_generation=None)
    starts = Intent.objects.filter(earlier, kind=IntentKind.START, done_at=None)
    number: int = starts.filter(session__executor__in=capacity.sharing(session.executor)).count()
    return number


def _is_full(session: TaskSession) -> bool:
    limit = capacity.limit_of(session.executor)
    return limit is not None and capacity.live_at(capacity.sharing(session.executor)).count() >= limit
