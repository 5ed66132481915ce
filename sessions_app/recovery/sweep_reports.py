"""Reports of sweeps: the stored rows, the document of `recover_sessions --json`, and requested sweeps."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from executors_app.models import ExecutorRunning
from executors_app.wire.executions import ExecutorStatus, Observed
from sessions_app.kernel.bulk import insert_rows
from sessions_app.models import (
    ContinuityReceipt,
    Intent,
    IntentKind,
    RecoverySweep,
    SweepOutcome,
    SweepRequest,
    TaskSession,
)
from sessions_app.recovery.rules.verification import ReceiptKind
from sessions_app.recovery.services.assessment import DAMAGED_ROW
from sessions_app.recovery.services.sweeps import OVERTAKEN, SKIPPED, UNDER_WAY, planned_row_result, row_result
from sessions_app.recovery.sweep.actions import ActionOutcome
from sessions_app.recovery.sweep.selection import CorruptRow
from sessions_app.recovery.sweep.sweep_pass import DecidedRow, ProgressCallback, SweepRun, SweepScope
from sessions_app.supervisor.execution_registry import ExecutionRegistry

COUNTED_KINDS = tuple(kind.value for kind in ReceiptKind)
_STORED: Final = (
    *("runtime", "observed", "rule", "executor_status", "session_state", "agent_action", "strategy"),
    *("receipt_kind", "reason", "error_message", "duration_ms"),
)
"""Fields of a document's row that are stored."""
_FOREIGN_RULE: Final = "foreign_lease"
"""The rule for sessions that another supervisor holds."""
_REPORTED: Final = ("rule", "observed", "agent_action", "strategy", "receipt_kind", "reason", "error_message")
"""Fields that a row repeats from the other supervisor's sweep."""


@dataclass(frozen=True, slots=True)
class _CurrentRows:
    """The present states for the document's rows; by session, except ``statuses``."""

    states: Mapping[uuid.UUID, str]
    statuses: Mapping[uuid.UUID, str]
    """By execution id."""
    receipts: Mapping[str, ContinuityReceipt]
    by_supervisor: Mapping[uuid.UUID, dict[str, Any]] = field(default_factory=dict)
    """The newest result of the supervisor that holds a session."""
    ordered: frozenset[uuid.UUID] = frozenset()
    """Sessions with an open start intent."""


def _load_current_rows(result: SweepRun) -> _CurrentRows:
    stored = [item.row.stored for item in result.decided]
    if result.scope.dry_run:  # nothing was changed
        return _CurrentRows(
            states={one.session_id: one.session__state for one in stored},
            statuses={one.id: one.status for one in stored},
            receipts={},
            by_supervisor=_by_supervisor(result),
        )
    ids, executions = [one.session_id for one in stored], [one.id for one in stored]
    ordered = Intent.objects.filter(session_id__in=ids, kind=IntentKind.START, done_at=None)
    return _CurrentRows(
        states=dict(TaskSession.objects.filter(id__in=ids).values_list("id", "state")),
        statuses=dict(ExecutorRunning.objects.filter(id__in=executions).values_list("id", "status")),
        receipts=_receipts(result),
        by_supervisor=_by_supervisor(result),
        ordered=frozenset(ordered.values_list("session_id", flat=True)),
    )


def build_report(result: SweepRun, boot_id: str) -> dict[str, Any]:
    """Build the JSON document of a sweep, with the current states: it includes starts that have ended meanwhile."""
    now = _load_current_rows(result)
    sessions = [_report_row(item, result, now) for item in result.decided]
    counts = dict.fromkeys((*COUNTED_KINDS, "skipped"), 0)
    for row in sessions:
        # A start is counted once it has a receipt.
        counts[SKIPPED if row["result"] == UNDER_WAY else row["result"]] += 1
    return {
        "sweep_id": str(result.sweep_id),
        "boot_id": boot_id,
        "trigger": result.scope.trigger,
        "dry_run": result.scope.dry_run,
        "started_at": result.started_at.isoformat(),
        "duration_ms": result.duration_ms,
        "examined": len(result.decided) + len(result.damaged),
        "outcomes": {**counts, "skipped": counts["skipped"] + len(result.damaged)},
        "sessions": [*sessions, *map(_corrupt_report_row, result.damaged)],
    }


def _receipts(result: SweepRun) -> dict[str, ContinuityReceipt]:
    """Return the newest receipt of each session since the sweep began, by session id."""
    ids = [item.row.stored.session_id for item in result.decided]
    rows = ContinuityReceipt.objects.filter(session_id__in=ids, created_at__gte=result.started_at)
    return {str(row.session_id): row for row in rows.order_by("after_seq", "created_at")}


def _by_supervisor(result: SweepRun) -> dict[uuid.UUID, dict[str, Any]]:
    """Return what other supervisors last decided on the sessions they hold, with the newest receipt since then."""
    held = {
        item.row.stored.session_id: item.row.stored.owner
        for item in result.decided
        if item.decision.rule == _FOREIGN_RULE
    }
    if not held:
        return {}
    told = SweepOutcome.objects.filter(session_id__in=held, sweep__boot_id__in=set(held.values()))
    columns = ("session_id", "sweep__boot_id", "sweep_id", "sweep__started_at", *_REPORTED)
    found = {}
    for session_id, owner, sweep_id, began, *values in told.order_by("sweep__started_at").values_list(*columns):
        if owner == held[session_id]:
            row = dict(zip(_REPORTED, values, strict=True))
            found[session_id] = {"boot_id": owner, "sweep_id": str(sweep_id), "began": began, **row}
    receipts = ContinuityReceipt.objects.filter(session_id__in=found).order_by("after_seq", "created_at")
    for session_id, kind, at in receipts.values_list("session_id", "kind", "created_at"):
        if at >= found[session_id]["began"]:
            found[session_id]["receipt_kind"] = kind
    return {session_id: {**row, "began": row["began"].isoformat()} for session_id, row in found.items()}


def _report_row(item: DecidedRow, result: SweepRun, now: _CurrentRows) -> dict[str, Any]:
    decision, session_id = item.decision, item.facts.session_id
    outcome = result.outcomes.get(session_id, ActionOutcome())
    receipt = now.receipts.get(session_id)
    reported = now.by_supervisor.get(item.row.stored.session_id)
    # The execution's own status becomes STARTING only when a supervisor claims the start.
    ordered = item.row.stored.session_id in now.ordered
    if reported:
        receipt_kind = reported["receipt_kind"]
    else:
        receipt_kind = receipt.kind if receipt else outcome.receipt_kind
    failure = receipt.reason if receipt and receipt.kind == "failed" else ""
    overtaken = OVERTAKEN if outcome.skipped and decision.agent_action == "reattach" else ""
    row = {
        "session_id": session_id,
        "task_id": item.facts.task_id,
        "task_title": item.row.stored.session__task__title,
        "runtime": item.facts.runtime,
        "observed": str(decision.observed),
        "rule": decision.rule,
        "executor_status": str(ExecutorStatus.STARTING) if ordered else now.statuses.get(item.row.stored.id, ""),
        "session_state": now.states.get(item.row.stored.session_id, ""),
        "agent_action": decision.agent_action,
        "strategy": str(decision.strategy or ""),
        "receipt_kind": receipt_kind,
        "reason": failure or decision.reason or overtaken,
        "error_message": outcome.error or decision.error_message,
        "owner": item.row.stored.owner if decision.rule == _FOREIGN_RULE else "",
        "by_supervisor": reported,
        "duration_ms": outcome.duration_ms,
    }
    return {**row, "result": _row_result(row, ordered=ordered, dry_run=result.scope.dry_run)}


def _row_result(row: Mapping[str, Any], *, ordered: bool, dry_run: bool) -> str:
    if ordered and not row["receipt_kind"]:
        return UNDER_WAY
    if row["by_supervisor"]:
        return row_result({**row["by_supervisor"], "session_state": row["session_state"]})
    if dry_run:
        return planned_row_result(row)
    return row_result(row)


def _corrupt_report_row(one: CorruptRow) -> dict[str, Any]:
    """Build the row of a session that the sweep skipped as corrupt."""
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
        "by_supervisor": None,
        "duration_ms": 0,
        "result": SKIPPED,
    }


def store_sweep(document: Mapping[str, Any], result: SweepRun, *, asked: bool = False) -> None:
    """Store a sweep and its outcomes; a periodic sweep that decided nothing is stored only if it was requested."""
    decided = [
        row for row, item in zip(document["sessions"], result.decided, strict=False) if not item.decision.is_noop
    ]
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
        insert_rows(SweepOutcome, ("sweep", "session", *_STORED), [_outcome_row(result.sweep_id, row) for row in rows])


def _outcome_row(sweep_id: uuid.UUID, row: Mapping[str, Any]) -> tuple[Any, ...]:
    told = {**row, "reason": row["reason"][:64]}
    return sweep_id, uuid.UUID(row["session_id"]), *(told[name] for name in _STORED)


PROGRESS_EVERY = 0.5
"""Seconds between two writes of a sweep's progress."""


def next_request() -> SweepRequest | None:
    """Return the oldest request that is not done, or None."""
    return SweepRequest.objects.filter(done_at=None).order_by("created_at", "id").first()


def request_scope(asked: SweepRequest) -> SweepScope:
    """Return the scope of a requested sweep; like a periodic one, it does not act on a first *unknown*."""
    return SweepScope("reconcile", sessions=[uuid.UUID(one) for one in asked.sessions], dry_run=asked.dry_run)


@asynccontextmanager
async def progress_writer(registry: ExecutionRegistry, asked: SweepRequest) -> AsyncIterator[ProgressCallback]:
    """Yield a progress callback, and store its latest values in the request while the block runs."""
    far: list[tuple[int, int]] = []

    async def tell() -> None:
        told = None
        while True:
            if far and far[-1] != told:
                told = far[-1]
                await registry.database(_save_progress, asked.id, *told)
            await asyncio.sleep(PROGRESS_EVERY)

    task = asyncio.create_task(tell())
    try:
        yield lambda done, total: far.append((done, total))
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _save_progress(request_id: uuid.UUID, done: int, total: int) -> None:
    SweepRequest.objects.filter(id=request_id, done_at=None).update(rows_done=done, rows_in_all=total)


def settle_request(asked: SweepRequest, result: SweepRun, boot_id: str) -> None:
    """Store the sweep, unless it was a dry run, and mark its request as done with the report.

    If two supervisors ran the same request, the first result stays.
    """
    document = build_report(result, boot_id)
    with transaction.atomic():
        if not asked.dry_run:
            store_sweep(document, result, asked=True)
        SweepRequest.objects.filter(id=asked.id, done_at=None).update(
            done_at=timezone.now(),
            rows_done=document["examined"],
            rows_in_all=document["examined"],
            sweep_id=None if asked.dry_run else result.sweep_id,
            report=document,
        )
