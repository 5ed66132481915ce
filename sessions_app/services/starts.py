"""Why a session that is to be started is not yet: its place among those that wait, in numbers for people."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from django.db.models import Count, Q

from executors_app import capacity
from executors_app.prepared import NUMBER, Prepared
from sessions_app.domain import admission
from sessions_app.domain.admission import WaitReason
from sessions_app.models import QUEUED_FOR_CAPACITY, Intent, IntentKind, TaskSession


class _Team(NamedTuple):
    """How many of a team wait: such whose work was cut short, others, and all with a place before one."""

    urgent: int = 0
    calm: int = 0
    earlier: int = 0


_LINE: Final = Prepared(
    lambda rank: (
        TaskSession.objects.filter(start_rank__isnull=False)
        .order_by()
        .values("task__team_id")
        .annotate(
            urgent=Count("start_rank", filter=Q(start_rank__lt=0)),
            calm=Count("start_rank", filter=Q(start_rank__gt=0)),
            earlier=Count("start_rank", filter=Q(start_rank__lt=rank)),
        )
        .values_list("task__team_id", "urgent", "calm", "earlier")
    ),
    NUMBER,
)


def start_wait(session: TaskSession, open_start: Intent | None) -> dict[str, Any] | None:
    """``{reason, before}``: ``turn`` or ``capacity``, and how many are before it; None where it does not wait."""
    if open_start is not None and open_start.payload.get(QUEUED_FOR_CAPACITY):
        return {"reason": str(WaitReason.CAPACITY), "before": _ordered_before(session, open_start)}
    if session.start_rank is None:
        return None
    reason = WaitReason.CAPACITY if _is_full(session) else WaitReason.TURN
    return {"reason": str(reason), "before": before(session)}


def before(session: TaskSession) -> int:
    """How many wait before it, by the order in which turns are given; one query."""
    rank, team = session.start_rank or 0, session.task.team_id
    line = {of: _Team(*counts) for of, *counts in _LINE.values(rank)}
    mine = line.get(team, _Team())
    others = {of: one.urgent if rank < 0 else one.calm for of, one in line.items() if of != team}
    urgent = sum(one.urgent for one in line.values()) if rank > 0 else 0
    return admission.before(rank, mine.earlier - (mine.urgent if rank > 0 else 0), others, urgent)


def _ordered_before(session: TaskSession, order: Intent) -> int:
    earlier = Q(**{f"payload__{QUEUED_FOR_CAPACITY}": True}, created_at__lt=order.created_at, claimed_generation=None)
    starts = Intent.objects.filter(earlier, kind=IntentKind.START, done_at=None)
    number: int = starts.filter(session__executor__in=capacity.sharing(session.executor)).count()
    return number


def _is_full(session: TaskSession) -> bool:
    limit = capacity.limit_of(session.executor)
    return limit is not None and capacity.live_at(capacity.sharing(session.executor)).count() >= limit
