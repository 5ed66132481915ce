"""Why nothing is happening in a session: its place in the start queue, and the idle reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db.models import Count, Q

from executors_app import capacity
from executors_app.prepared_query import NUMBER, PreparedQuery
from sessions_app.domain import restart_rules
from sessions_app.domain.attention import AttentionKind
from sessions_app.domain.idle_reason import IdleFacts, explain_idle
from sessions_app.domain.restart_rules import WaitReason
from sessions_app.domain.wait_tokens import WaitKind
from sessions_app.models import QUEUED_FOR_CAPACITY, Intent, IntentKind, Supervisor, TaskSession


class _Team(NamedTuple):
    """How many of a team wait: such whose work was cut short, others, and all with a place before one."""

    urgent: int = 0
    calm: int = 0
    earlier: int = 0


_QUEUE: Final = PreparedQuery(
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


def start_wait_json(session: TaskSession, open_start: Intent | None) -> dict[str, Any] | None:
    """``{reason, before}``: ``turn`` or ``capacity``, and how many are before it; None where it does not wait."""
    if open_start is not None and open_start.payload.get(QUEUED_FOR_CAPACITY):
        return {"reason": str(WaitReason.CAPACITY), "before": _ordered_before(session, open_start)}
    if session.start_rank is None:
        return None
    reason = WaitReason.CAPACITY if _has_no_capacity(session) else WaitReason.TURN
    return {"reason": str(reason), "before": count_waiting_before(session)}


def count_waiting_before(session: TaskSession) -> int:
    """How many wait before it, by the order in which turns are given; one query."""
    rank, team = session.start_rank or 0, session.task.team_id
    line = {of: _Team(*counts) for of, *counts in _QUEUE.values(rank)}
    mine = line.get(team, _Team())
    others = {of: one.urgent if rank < 0 else one.calm for of, one in line.items() if of != team}
    urgent = sum(one.urgent for one in line.values()) if rank > 0 else 0
    return restart_rules.count_before(rank, mine.earlier - (mine.urgent if rank > 0 else 0), others, urgent)


def _ordered_before(session: TaskSession, order: Intent) -> int:
    earlier = Q(**{f"payload__{QUEUED_FOR_CAPACITY}": True}, created_at__lt=order.created_at, claimed_generation=None)
    starts = Intent.objects.filter(earlier, kind=IntentKind.START, done_at=None)
    number: int = starts.filter(session__executor__in=capacity.executors_sharing_room(session.executor)).count()
    return number


def _has_no_capacity(session: TaskSession) -> bool:
    limit = capacity.agent_limit(session.executor)
    return (
        limit is not None
        and capacity.live_executions(capacity.executors_sharing_room(session.executor)).count() >= limit
    )


def idle_reason_json(
    session: TaskSession, status: Mapping[str, Any], open_kinds: Collection[str]
) -> dict[str, Any] | None:
    """``{reason, text, next_step, until}``, or None; a query only where something waits for a supervisor."""
    found = explain_idle(_facts(session, status, open_kinds))
    if found is None:
        return None
    until = found.until.isoformat() if found.until else None
    return {"reason": str(found.reason), "text": found.text, "next_step": found.next_step, "until": until}


def _facts(session: TaskSession, status: Mapping[str, Any], open_kinds: Collection[str]) -> IdleFacts:
    wait, line = status["wait"], status["start_wait"]
    outside = bool(wait and wait["kind"] != WaitKind.PERMISSION)
    return IdleFacts(
        session_state=status["state"],
        desired_state=status["desired_state"],
        work_state=status["work_state"],
        agent_running=status["is_agent_running"],
        policy=status["policy"],
        policy_source=status["policy_source"],
        recovering=status["recovering"],
        supervised=not _waits_for_supervisor(status) or Supervisor.objects.alive().exists(),
        starting=status["starting"],
        start_reason=line["reason"] if line else "",
        starts_before=line["before"] if line else 0,
        pending_permissions=status["pending_permissions"],
        waits_outside=outside,
        held_prompts=status["held_prompts"],
        queued_prompts=status["queued_prompts"],
        needs_resume=status["needs_resume"],
        error_code=status["error_code"],
        error_message=status["error_message"],
        owner_left=AttentionKind.OWNER_LEFT in open_kinds,
        asleep=status["asleep"],
        attempts=session.start_attempts,
        until=session.next_restart_at,
        wait_until=datetime.fromisoformat(wait["deadline"]) if outside and wait["deadline"] else None,
        task_over=session.task.is_over,
    )


def _waits_for_supervisor(status: Mapping[str, Any]) -> bool:
    """Whether anything is to be carried out that only a supervisor does."""
    return bool(status["starting"] or status["queued_prompts"] or status["recovering"] or status["start_wait"])
