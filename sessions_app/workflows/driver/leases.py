"""The leases of runs: at most one driver advances a run."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from executors_app.machine.process import identity
from executors_app.models import ExecutorRunning
from sessions_app.models import (
    LeaseLost,
)
from sessions_app.supervisor.leases import database_now, is_local_execution, lease_ttl, leased_by_others
from sessions_app.workflows.models import WorkflowRun

ACTIVE_STATES = ("queued", "running")


@dataclass(frozen=True, slots=True)
class RunLease:
    """The right to drive one run, and to write its rows. Each new owner raises the generation."""

    run_id: uuid.UUID
    owner: str
    generation: int


def acquire_leases(owner: str) -> list[RunLease]:
    """Return the leases of all active runs that ``owner`` holds or can acquire now.

    A run whose workspace is on another machine is left to that machine, even if it began here: only that machine can
    reach the workspace's agentctl.
    """
    active = WorkflowRun.objects.filter(state__in=ACTIVE_STATES)
    rows = list(active.values_list("id", "owner", "lease_expires_at", "generation"))
    elsewhere = _runs_elsewhere({run_id for run_id, *_ in rows})
    WorkflowRun.objects.filter(id__in=elsewhere, owner=owner).update(owner="", lease_expires_at=None)
    holders = [(run_id, holder, expires_at) for run_id, holder, expires_at, _ in rows]
    unavailable = leased_by_others(holders, owner) | elsewhere
    leases = []
    for run_id, holder, _, generation in rows:
        if run_id in unavailable:
            continue
        lease = _acquire_lease(run_id, holder, generation, owner)
        if lease is not None:
            leases.append(lease)
    return leases


def _runs_elsewhere(runs: set[uuid.UUID]) -> set[uuid.UUID]:
    """Return the runs whose workspace is supervised by another machine."""
    if not runs:
        return set()
    with_workspace = WorkflowRun.objects.filter(id__in=runs, workspace__isnull=False)
    run_of_session = dict(with_workspace.values_list("workspace_id", "id"))
    executions = ExecutorRunning.objects.exclude(host_id__in=("", identity.host_id())).select_related("executor")
    elsewhere = set()
    for execution in executions.filter(session__in=run_of_session):
        if not is_local_execution(execution):
            elsewhere.add(run_of_session[execution.session_id])
    return elsewhere


def _acquire_lease(run_id: uuid.UUID, holder: str, generation: int, owner: str) -> RunLease | None:
    """Acquire a lease for ``owner``, unless it has it already.

    Two drivers may have read the same expired lease. The conditions of the UPDATE let only the first one win, because
    it raises the generation that the second one expects.
    """
    if holder == owner:
        return RunLease(run_id, owner, generation)
    same = WorkflowRun.objects.filter(id=run_id, owner=holder, generation=generation, state__in=ACTIVE_STATES)
    expires_at = database_now() + lease_ttl()
    if same.update(owner=owner, generation=generation + 1, lease_expires_at=expires_at):
        return RunLease(run_id, owner, generation + 1)
    return None


def renew_leases(owner: str) -> None:
    """Renew every lease of ``owner``."""
    WorkflowRun.objects.filter(owner=owner).update(lease_expires_at=database_now() + lease_ttl())


def release_leases(owner: str) -> None:
    """Release every lease of ``owner``. The generations stay, so that a late write with an old lease still fails."""
    WorkflowRun.objects.filter(owner=owner).update(owner="", lease_expires_at=None)


def lock_leased_run(lease: RunLease) -> WorkflowRun:
    """Return the run, locked until the transaction ends. Raises LeaseLost if another driver has it, or it is over.

    The lock keeps another driver from acquiring the lease between this check and the commit.
    """
    rows = WorkflowRun.objects.select_for_update(no_key=True, of=("self",))
    related = ("team", "task", "workspace", "executor", "agent_profile", "started_by")
    run: WorkflowRun | None = (
        rows.select_related(*related)
        .filter(id=lease.run_id, owner=lease.owner, generation=lease.generation, state__in=ACTIVE_STATES)
        .first()
    )
    if run is None:
        raise LeaseLost("Another supervisor drives this run, or the run is over.")
    return run
