"""What a sweep tells: the rows it stores, and the document of ``recover_sessions --json`` (interfaces 2)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from django.db import transaction

from executors_app.domain import Observed
from executors_app.models import ExecutorRunning
from sessions_app.domain.soundness import DAMAGED_ROW
from sessions_app.domain.verification import ReceiptKind
from sessions_app.models import ContinuityReceipt, RecoverySweep, SweepOutcome, TaskSession
from sessions_app.models.bulk import insert_rows
from sessions_app.services.sweep_results import OVERTAKEN, SKIPPED, UNDER_WAY, result_of
from sessions_app.supervisor.sweep.acting import Outcome
from sessions_app.supervisor.sweep.damage import Damaged
from sessions_app.supervisor.sweep.one_pass import Decided, Sweep

COUNTED = tuple(kind.value for kind in ReceiptKind)
_STORED: Final = (
    *("runtime", "observed", "rule", "executor_status", "session_state", "agent_action", "strategy"),
    *("receipt_kind", "reason", "error_message", "duration_ms"),
)
"""What is kept of a row of the document."""


def report(result: Sweep, boot_id: str) -> dict[str, Any]:
    """The sweep with the states as they are now: starts that have ended meanwhile are in it."""
    ids = [item.row.stored.session_id for item in result.decided]
    states = dict(TaskSession.objects.filter(id__in=ids).values_list("id", "state"))
    executions = [item.row.stored.id for item in result.decided]
    statuses = dict(ExecutorRunning.objects.filter(id__in=executions).values_list("id", "status"))
    receipts = _receipts(result)
    sessions = [_row(item, result, states, statuses, receipts) for item in result.decided]
    counts = dict.fromkeys((*COUNTED, "skipped"), 0)
    for row in sessions:
        kind = result_of(row)
        counts[SKIPPED if kind == UNDER_WAY else kind] += 1  # a start is counted once it has a receipt
    return {
        "sweep_id": str(result.sweep_id),
        "boot_id": boot_id,
        "trigger": result.scope.trigger,
        "dry_run": result.scope.dry_run,
        "started_at": result.started_at.isoformat(),
        "duration_ms": result.duration_ms,
        "examined": len(result.decided) + len(result.damaged),
        "outcomes": {**counts, "skipped": counts["skipped"] + len(result.damaged)},
        "sessions": [*sessions, *map(_damaged_row, result.damaged)],
    }


def _receipts(result: Sweep) -> dict[str, ContinuityReceipt]:
    """The newest receipt of each session since the sweep began."""
    if result.scope.dry_run:
        return {}
    ids = [item.row.stored.session_id for item in result.decided]
    rows = ContinuityReceipt.objects.filter(session_id__in=ids, created_at__gte=result.started_at)
    return {str(row.session_id): row for row in rows.order_by("created_at")}


def _row(
    item: Decided,
    result: Sweep,
    states: Mapping[Any, str],
    statuses: Mapping[Any, str],
    receipts: Mapping[str, ContinuityReceipt],
) -> dict[str, Any]:
    decision, session_id = item.decision, item.facts.session_id
    outcome = result.outcomes.get(session_id, Outcome())
    receipt = receipts.get(session_id)
    return {
        "session_id": session_id,
        "task_id": item.facts.task_id,
        "task_title": item.row.stored.session__task__title,
        "runtime": item.facts.runtime,
        "observed": str(decision.observed),
        "rule": decision.rule,
        "executor_status": statuses.get(item.row.stored.id, ""),
        "session_state": states.get(item.row.stored.session_id, ""),
        "agent_action": decision.agent_action,
        "strategy": str(decision.strategy or ""),
        "receipt_kind": receipt.kind if receipt else outcome.receipt_kind,
        "reason": (receipt.reason if receipt and receipt.kind == "failed" else "")
        or decision.reason
        or (OVERTAKEN if outcome.skipped and decision.agent_action == "reattach" else ""),
        "error_message": outcome.error or decision.error_message,
        "owner": item.row.stored.owner if decision.rule == "foreign_lease" else "",
        "duration_ms": outcome.duration_ms,
    }


def _damaged_row(one: Damaged) -> dict[str, Any]:
    """A session that the sweep passed over."""
    return {
        "session_id": str(one.session_id),
        "task_id": str(one.task_id),
        "task_title": one.task_title,
        "runtime": one.runtime,
        "observed": str(Observed.UNKNOWN),
        "rule": DAMAGED_ROW,
        "executor_status": one.executor_status[:10],
        "session_state": one.session_state[:20],
        "agent_action": "none",
        "strategy": "",
        "receipt_kind": "",
        "reason": DAMAGED_ROW,
        "error_message": one.said,
        "owner": "",
        "duration_ms": 0,
    }


def store(document: Mapping[str, Any], result: Sweep, *, asked: bool = False) -> None:
    """Keep a sweep and its outcomes; loop passes that nobody asked for only where something was decided."""
    decided = [row for row, item in zip(document["sessions"], result.decided, strict=False) if not item.decision.quiet]
    if result.scope.trigger == "reconcile" and not decided and not asked:
        return
    rows = document["sessions"] if result.scope.boot else decided
    with transaction.atomic():
        RecoverySweep.objects.create(
            id=result.sweep_id,
            boot_id=document["boot_id"],
            trigger=result.scope.trigger,
            started_at=result.started_at,
            duration_ms=result.duration_ms,
            examined=document["examined"],
            outcomes=document["outcomes"],
        )
        insert_rows(SweepOutcome, ("sweep", "session", *_STORED), [_stored(result.sweep_id, row) for row in rows])


def _stored(sweep_id: uuid.UUID, row: Mapping[str, Any]) -> tuple[Any, ...]:
    told = {**row, "reason": row["reason"][:64]}
    return sweep_id, uuid.UUID(row["session_id"]), *(told[name] for name in _STORED)
