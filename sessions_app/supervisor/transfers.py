"""The transfer of work as rows tell it: which snapshots have not arrived, and what came of each try.

Two columns are compared: the snapshot that the journal announced and the one that the archive has. So what a kill
left behind is found by the next supervisor, whether the execution is alive, stopped or failed.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass

from django.db.models import F, Q
from django.utils import timezone

from executors_app.domain import ExecutionFacts
from executors_app.errors import ExecutorError, SnapshotMissing
from executors_app.models import SNAPSHOT_DUE, ExecutorRunning
from sessions_app.models import Lease, LeaseLost, writing
from sessions_app.models.bulk import update
from sessions_app.services.transfers import is_due, is_overdue, push_runtimes
from sessions_app.supervisor import leases
from sessions_app.supervisor.rows import facts_of, session_of
from sessions_app.supervisor.tally import TALLY

log = logging.getLogger(__name__)
_STATE = ("snapshot_announced", "snapshot_arrived", "snapshot_due_since", "snapshot_error_code", "snapshot_error")


@dataclass(frozen=True, slots=True)
class Transfer:
    """One try, and under which lease its result may be written."""

    facts: ExecutionFacts
    lease: Lease
    announced: str
    """The snapshot that is to arrive."""

    @property
    def session_id(self) -> uuid.UUID:
        """The session's id."""
        return uuid.UUID(self.facts.session_id)

    @property
    def owner_id(self) -> str:
        """The session whose work tree it is; its archive and recovery ref have this name."""
        return self.facts.worktree_id or self.facts.session_id


def due(me: str) -> dict[uuid.UUID, str]:
    """Return the executions with a snapshot that has not arrived, with its commit.

    Left out are those that another living supervisor holds. One query finds them by an index of just these rows.
    """
    # Only a session's present execution: an earlier one would move the archive back to older work.
    rows = ExecutorRunning.objects.filter(
        SNAPSHOT_DUE, runtime__in=push_runtimes(), session__agent_execution_id=F("id")
    ).values_list("id", "owner", "lease_expires_at", "snapshot_announced")
    found = list(rows)
    foreign = leases.held_by_others([(key, owner, expires) for key, owner, expires, _ in found], me)
    return {key: announced for key, _, _, announced in found if key not in foreign}


def begin(me: str, execution_id: uuid.UUID) -> Transfer | None:
    """Lease an execution for its transfer; None where it is another supervisor's to do. SecretUnreadable.

    The lease stays ours until we end, as that of a live execution does: to give it back here could take it from a
    start of ours that has begun meanwhile.
    """
    lease = leases.acquire(execution_id, me)
    execution = ExecutorRunning.objects.select_related("executor").filter(id=execution_id).first()
    if lease is None or execution is None:
        return None
    facts = facts_of(execution, session_of(execution.session_id))
    return Transfer(facts, lease, execution.snapshot_announced)


def record_arrival(transfer: Transfer, arrived: str | None) -> bool:
    """Write what the archive has after a push that succeeded; False if a newer snapshot was announced meanwhile.

    ``arrived``: of ``workspace_store.newest_snapshot``. Raises LeaseLost, SnapshotMissing.
    """
    with writing(transfer.session_id, transfer.lease) as draft:
        execution = draft.execution
        if execution is None:
            raise LeaseLost
        late, code = is_overdue(execution, timezone.now()), execution.snapshot_error_code
        if arrived is None or _is_superseded(transfer, execution, arrived):
            execution.snapshot_announced = arrived or ""
        execution.snapshot_arrived = arrived or ""
        missing = is_due(execution) and execution.snapshot_announced == transfer.announced
        if not is_due(execution):
            execution.snapshot_due_since = None
            execution.snapshot_error_code = execution.snapshot_error = ""
            if late:
                draft.say("session.workspace.arrived", commit=execution.snapshot_arrived)
        update(execution, _STATE)
    if missing:
        raise SnapshotMissing
    if code and not is_due(execution):
        log.info("session %s: its newest snapshot has arrived", transfer.session_id)
    return not is_due(execution)


def _is_superseded(transfer: Transfer, execution: ExecutorRunning, arrived: str) -> bool:
    """Whether another session that works in the same work tree has taken a newer snapshot under the same ref."""
    owner = transfer.owner_id
    beside = ExecutorRunning.objects.filter(Q(worktree_id=owner) | Q(session_id=owner), snapshot_announced=arrived)
    unchanged = execution.snapshot_announced == transfer.announced
    return bool(arrived) and unchanged and beside.exclude(id=execution.id).exists()


def record_failure(transfer: Transfer, error: ExecutorError) -> None:
    """Write why a push failed. The first failure of an outage is logged, counted and put into the session's log.

    Raises LeaseLost.
    """
    with writing(transfer.session_id, transfer.lease) as draft:
        execution = draft.execution
        if execution is None or not is_due(execution):
            return
        is_first = not execution.snapshot_error_code
        told = {"error_code": error.code, "error_message": error.message[:2000]}
        execution.snapshot_error_code, execution.snapshot_error = told["error_code"], told["error_message"]
        update(execution, _STATE)
        if is_first:
            draft.say("session.workspace.delayed", commit=execution.snapshot_announced, **told)
    if is_first:
        TALLY.count("kandev_workspace_transfer_outages_total", runtime=transfer.facts.runtime)
        log.warning("session %s: its newest snapshot has not arrived: %s", transfer.session_id, error.message)
