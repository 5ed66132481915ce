"""A host that was declared lost and is back: it ends what it still runs of it before it claims anything.

Each of its ``host_lost`` executions is ended with the proofs of its runtime, never by a pid alone. The last saved work
of the session there gets a ref of its own, which no later snapshot replaces; its worktree stays as it is.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from executors_app.cleanup import keep_newest_snapshot
from executors_app.machine import crash_points
from executors_app.models import ExecutorRunning
from executors_app.plugins import runtime
from executors_app.wire.errors import ExecutorError
from executors_app.wire.executions import ExecutionFacts, ExecutorStatus
from sessions_app.accounts.audit import record_change
from sessions_app.hosts import cordons, heartbeats, losses
from sessions_app.hosts.models import HostMaintenance
from sessions_app.hosts.own_executions import find_own_executions
from sessions_app.models import session_transaction
from sessions_app.recovery.rules.resumability import HOST_LOST
from sessions_app.recovery.services.assessment import execution_facts_of
from sessions_app.starts.events import LostHostReturned
from sessions_app.supervisor.execution_registry import ExecutionRegistry

log = logging.getLogger(__name__)
BATCH: Final = 100
ENDED_REASON: Final = "host_lost_ended"
"""``status_reason`` of an execution on a lost host that has returned and has ended it."""


@dataclass(frozen=True, slots=True)
class ReturnedExecution:
    """An execution of this host that was ended as ``host_lost``, and may still run."""

    session_id: uuid.UUID
    facts: ExecutionFacts


async def end_lost_executions(registry: ExecutionRegistry) -> bool:
    """End what this host may still run although it was declared lost; return whether nothing of it is left.

    Whoever declared it lost may not have ended all its sessions yet: then this host does so first.
    """
    await _end_rows(registry)
    left = False
    tried: set[str] = set()
    while batch := await registry.database(load_returned, frozenset(tried)):
        for one in batch:
            tried.add(one.facts.id)
            left |= not await _end_one(registry, one)
    if not left:
        await registry.database(forget_loss)
    return not left


async def _end_rows(registry: ExecutionRegistry) -> None:
    row = await registry.database(cordons.maintenance_here)
    if row is None or row.lost_at is None:
        return
    while batch := await registry.database(losses.load_lost, row.host.name):
        for lost in batch:
            await registry.database(_end_row, lost)


def _end_row(lost: losses.LostExecution) -> None:
    # The work is on this very host, wherever its repository is.
    losses.end_lost(lost, is_here=True)


def load_returned(tried: frozenset[str] = frozenset()) -> list[ReturnedExecution]:
    """Return the executions of this host that a declaration has ended, without those in ``tried``."""
    rows = ExecutorRunning.objects.filter(status=ExecutorStatus.STOPPED, status_reason=HOST_LOST)
    rows = rows.exclude(id__in=tried).select_related("session__task__repository", "executor")
    own = find_own_executions(rows, BATCH)
    return [ReturnedExecution(row.session_id, execution_facts_of(row, row.session)) for row in own]


async def _end_one(registry: ExecutionRegistry, returned: ReturnedExecution) -> bool:
    facts = returned.facts
    if not await runtime(facts.runtime).end(facts):
        log.warning("session %s: not everything that this lost host still ran could be ended", returned.session_id)
        return False
    crash_points.reached("returned.ended", returned.session_id)
    ref = await asyncio.to_thread(_keep_work, facts)
    await registry.database(record_returned, returned, ref)
    return True


def _keep_work(facts: ExecutionFacts) -> str:
    """Keep the newest snapshot under a ref of its own and return that; empty if there is none here."""
    if not facts.repository_path:
        return ""
    try:
        return keep_newest_snapshot(Path(facts.repository_path), facts.worktree_owner)
    except (ExecutorError, OSError, ValueError) as error:
        log.warning("execution %s: its last saved work has no ref of its own: %s", facts.id, error)
        return ""


def record_returned(returned: ReturnedExecution, ref: str) -> None:
    """Record that this host has ended an execution; once, whoever repeats it."""
    with session_transaction(returned.session_id) as transaction:
        rows = ExecutorRunning.objects.filter(
            id=returned.facts.id, status=ExecutorStatus.STOPPED, status_reason=HOST_LOST
        )
        if rows.update(status_reason=ENDED_REASON):
            transaction.record_event(LostHostReturned(host=heartbeats.host_name(), ref=ref))


def forget_loss() -> None:
    """Record that this host is not lost any more."""
    row = cordons.maintenance_here()
    if row is None or row.lost_at is None:
        return
    HostMaintenance.objects.filter(host=row.host).update(lost_at=None)
    HostMaintenance.objects.filter(host=row.host, cordoned_at=None, draining_at=None, lost_at=None).delete()
    record_change(None, row.host, "has returned, and has ended what it still ran")
