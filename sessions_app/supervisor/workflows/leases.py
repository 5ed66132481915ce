"""Who drives a run: one owner at a time, each take-over with a higher generation, as for executions (rules 17-19)."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from django.db.models import Q

from executors_app.agentctl import identity
from executors_app.models import ExecutorRunning
from sessions_app.models import LeaseLost, WorkflowRun
from sessions_app.supervisor.leases import database_now, held_by_others, is_here, ttl

OPEN = ("queued", "running")


@dataclass(frozen=True, slots=True)
class RunLease:
    """The right to write for one run."""

    run_id: uuid.UUID
    owner: str
    generation: int


def take_open(me: str) -> list[RunLease]:
    """The leases of all runs that are under way and that ``me`` has or can have now.

    A run whose workspace is on another machine is left to that machine, even one that was begun here (rule 2).
    """
    rows = list(WorkflowRun.objects.filter(state__in=OPEN).values_list("id", "owner", "lease_expires_at", "generation"))
    away = _away({key for key, *_ in rows})
    WorkflowRun.objects.filter(id__in=away, owner=me).update(owner="", lease_expires_at=None)
    held = held_by_others([(key, owner, expires) for key, owner, expires, _ in rows], me) | away
    found = (_take(key, owner, generation, me) for key, owner, _, generation in rows if key not in held)
    return [lease for lease in found if lease is not None]


def _away(runs: set[uuid.UUID]) -> set[uuid.UUID]:
    """Those whose workspace another machine looks after."""
    if not runs:
        return set()
    found = dict(WorkflowRun.objects.filter(id__in=runs, workspace__isnull=False).values_list("workspace_id", "id"))
    elsewhere = ExecutorRunning.objects.exclude(host_id__in=("", identity.host_id())).select_related("executor")
    return {found[one.session_id] for one in elsewhere.filter(session__in=found) if not is_here(one)}


def _take(run_id: uuid.UUID, owner: str, generation: int, me: str) -> RunLease | None:
    """By one guarded UPDATE; one that is ours already is kept."""
    if owner == me:
        return RunLease(run_id, me, generation)
    won = WorkflowRun.objects.filter(Q(owner=owner), id=run_id, generation=generation, state__in=OPEN).update(
        owner=me, generation=generation + 1, lease_expires_at=database_now() + ttl()
    )
    return RunLease(run_id, me, generation + 1) if won else None


def renew(me: str) -> None:
    """Prolong every lease of ``me``."""
    WorkflowRun.objects.filter(owner=me).update(lease_expires_at=database_now() + ttl())


def release(me: str) -> None:
    """Give every lease of ``me`` back; the generations stay."""
    WorkflowRun.objects.filter(owner=me).update(owner="", lease_expires_at=None)


def leased(lease: RunLease) -> WorkflowRun:
    """The run, locked until the transaction ends. Raises LeaseLost where it is somebody else's, or over."""
    rows = WorkflowRun.objects.select_for_update(no_key=True, of=("self",))
    beside = ("team", "task", "executor", "agent_profile", "started_by")
    run: WorkflowRun | None = (
        rows.select_related(*beside)
        .filter(id=lease.run_id, owner=lease.owner, generation=lease.generation, state__in=OPEN)
        .first()
    )
    if run is None:
        raise LeaseLost("Another supervisor drives this run, or it is over.")
    return run
