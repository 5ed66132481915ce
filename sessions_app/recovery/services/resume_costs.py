"""What a resume costs: read from the session's turns before it, and from the first turn after it for its receipt."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from django.db.models import OuterRef, Subquery
from django.utils import timezone

from executors_app.models import ExecutorRunning
from sessions_app.kernel.rules.wording import iso_time
from sessions_app.models import ContinuityReceipt, TaskSession, Turn
from sessions_app.recovery.continuity import CONVERSATION_SINCE, turns_of_conversation
from sessions_app.recovery.rules.history import Injection
from sessions_app.recovery.rules.resumability import Assessment, Row, Strategy, assess
from sessions_app.recovery.rules.resume_cost import (
    COSTLY_KINDS,
    ReportedContext,
    ResumeCost,
    cost_of,
    last_reported_context,
)
from sessions_app.recovery.services.assessment import load_session_rows, resume_facts, session_flaws
from sessions_app.sessions.rules.session_status import FirstTurnStatus
from sessions_app.turns.models import newest_runs

TURNS_READ: Final = 20
"""Newest turns among which a report of the context is looked for."""


def expected_cost(
    session: TaskSession, assessment: Assessment, *, tells_history: bool, history: Injection | None
) -> ResumeCost | None:
    """Return what the next resume costs; None if there is none to come. At most one query.

    ``tells_history``: whether the next prompt tells a new agent the history; that agent may be running already.
    ``history``: that history, if it is built.
    """
    strategy = assessment.cause.strategy
    if tells_history:
        strategy = Strategy.HISTORY
    elif assessment.is_running:
        return None
    if strategy is None or assessment.cause.row is Row.NEVER_PROMPTED:
        return None
    newest_first = turns_of_conversation(session).order_by("-started_at", "-id")
    turns = list(newest_first.values_list("usage", "ended_at")[:TURNS_READ])
    return cost_of(
        strategy,
        context=last_reported_context([(_readable(usage), ended_at) for usage, ended_at in turns]),
        history=history,
        last_turn_ended_at=next((ended_at for _, ended_at in turns if ended_at), None),
    )


def costs_if_ended(executions: Sequence[ExecutorRunning]) -> list[tuple[TaskSession, ResumeCost]]:
    """Return what a resume of each session would cost if its running agent ended now. Two queries.

    ``executions`` were read with their sessions, tasks and profiles. How long a history would be is not looked up.
    """
    session_ids = [execution.session_id for execution in executions]
    newest, reported = newest_runs(session_ids), _turns_with_context(session_ids)
    costs = []
    for execution in executions:
        session = execution.session
        session.__dict__["present_execution"] = execution
        run = newest.get(session.id)
        if run is None or session.agent_execution_id != execution.id or session_flaws(session, execution):
            continue
        facts = resume_facts(load_session_rows(session), ever_prompted=True)
        strategy = assess(facts, timezone.now()).without_live_agent.cause.strategy
        if strategy is not None:
            context = _context_of(session, reported.get(session.id))
            costs.append((session, cost_of(strategy, context=context, history=None, last_turn_ended_at=run.ended_at)))
    return costs


def _turns_with_context(session_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, Turn]:
    """Return the newest turn of each session in which its agent has reported the size of its context; one query."""
    turns = Turn.objects.filter(has_process=True, usage__has_key="context_used")
    newest = turns.filter(session=OuterRef("session")).order_by("-started_at", "-id").values("id")[:1]
    found = turns.filter(session__in=session_ids, id=Subquery(newest))
    return {turn.session_id: turn for turn in found}


def _context_of(session: TaskSession, turn: Turn | None) -> ReportedContext | None:
    """Return what the agent has reported in a turn, if that turn is part of the session's present conversation."""
    since = session.metadata.get(CONVERSATION_SINCE)
    if turn is None or (isinstance(since, int) and turn.first_seq is not None and turn.first_seq <= since):
        return None
    return last_reported_context([(_readable(turn.usage), turn.ended_at)])


def first_turns(receipts: Collection[ContinuityReceipt]) -> dict[uuid.UUID, Turn]:
    """Return the first turn after each resume that has one, by the receipt's id; at most one query.

    ``receipts`` were read ``with_first_turn``.
    """
    wanted = {}
    for receipt in receipts:
        first_turn_id = receipt.first_turn_id  # type: ignore[attr-defined]  # an annotation
        if receipt.kind in COSTLY_KINDS and first_turn_id is not None:
            wanted[receipt.id] = first_turn_id
    if not wanted:
        return {}
    turns = Turn.objects.in_bulk(list(wanted.values()))
    return {receipt_id: turns[turn_id] for receipt_id, turn_id in wanted.items() if turn_id in turns}


def first_turn_json(turn: Turn | None) -> FirstTurnStatus | None:
    """Return the first turn after a resume as the API shows it; figures that its agent has not reported are missing."""
    if turn is None:
        return None
    return {
        "id": str(turn.id),
        "message_id": turn.message_id,
        "state": turn.state,
        "ended_at": iso_time(turn.ended_at),
        "usage": _readable(turn.usage) or None,
    }


def _readable(usage: Any) -> Mapping[str, Any] | None:
    """Return the figures of a turn; None if there are none, or if the row is damaged."""
    if isinstance(usage, dict):
        return usage
    return None
