"""Push each snapshot of a session's work to the control plane, and record in the rows what has arrived."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from django.db.models import F, Q
from django.utils import timezone

from executors_app.backoff import Backoff
from executors_app.models import SNAPSHOT_DUE, ExecutorRunning
from executors_app.plugins import runtime
from executors_app.repositories import workspace_store
from executors_app.runtimes import SupportsPush
from executors_app.wire.errors import ExecutorError, PublicationRefused, RuntimeUnavailable, SnapshotMissing
from executors_app.wire.executions import ExecutionFacts
from sessions_app.kernel import actor_context
from sessions_app.kernel.database_threads import DatabaseThread
from sessions_app.metrics.counters import METRICS_BUFFER
from sessions_app.models import Lease, LeaseLost, session_transaction
from sessions_app.recovery.services.assessment import execution_facts_of
from sessions_app.supervisor import leases
from sessions_app.supervisor.executions import load_session
from sessions_app.supervisor.place_threads import place_of
from sessions_app.workspace.events import WorkspaceArrived, WorkspaceDelayed, WorkspaceUnpublished
from sessions_app.workspace.services.workspace import is_transfer_due, is_transfer_overdue, push_runtimes

log = logging.getLogger(__name__)
_STATE = (
    "snapshot_announced",
    "snapshot_arrived",
    "snapshot_due_since",
    "snapshot_error_code",
    "snapshot_error",
    "updated_at",
)


@dataclass(frozen=True, slots=True)
class Transfer:
    """One attempt to transfer a snapshot, and the lease under which its result is written."""

    facts: ExecutionFacts
    lease: Lease
    announced: str
    """The commit of the snapshot that has to arrive."""

    @property
    def session_id(self) -> uuid.UUID:
        """The session's id."""
        return uuid.UUID(self.facts.session_id)

    @property
    def owner_id(self) -> str:
        """The session that owns the worktree; its archive and recovery ref have this name."""
        return self.facts.worktree_id or self.facts.session_id


def load_due_transfers(owner: str) -> dict[uuid.UUID, str]:
    """Return the executions whose newest snapshot has not arrived, with its commit.

    Executions that another living supervisor holds are left out.
    """
    # Only a session's present execution: an earlier one would move the archive back to older work.
    rows = ExecutorRunning.objects.filter(
        SNAPSHOT_DUE, runtime__in=push_runtimes(), session__agent_execution_id=F("id")
    ).values_list("id", "owner", "lease_expires_at", "snapshot_announced")
    found = list(rows)
    foreign = leases.leased_by_others([(key, holder, expires) for key, holder, expires, _ in found], owner)
    return {key: announced for key, _, _, announced in found if key not in foreign}


def begin_transfer(owner: str, execution_id: uuid.UUID) -> Transfer | None:
    """Lease an execution for its transfer; None if another supervisor holds it. Raises SecretUnreadable."""
    # The lease is kept until we shut down: releasing it after the transfer could take it from a start of ours that has
    # begun meanwhile.
    lease = leases.acquire_lease(execution_id, owner)
    execution = ExecutorRunning.objects.select_related("executor").filter(id=execution_id).first()
    if lease is None or execution is None:
        return None
    facts = execution_facts_of(execution, load_session(execution.session_id))
    return Transfer(facts, lease, execution.snapshot_announced)


def record_arrival(transfer: Transfer, arrived: str | None) -> bool:
    """Write what the archive has after a successful push; return False if a newer snapshot was announced meanwhile.

    ``arrived`` is the result of ``workspace_store.newest_snapshot``. Raises LeaseLost, and SnapshotMissing if the
    announced snapshot did not arrive.
    """
    with session_transaction(transfer.session_id, transfer.lease) as transaction:
        execution = transaction.execution
        if execution is None:
            raise LeaseLost
        late, code = is_transfer_overdue(execution, timezone.now()), execution.snapshot_error_code
        # Without an archive, or with a newer snapshot of a session that shares the worktree, the announced one can
        # never arrive: what is there now counts as announced.
        if arrived is None or _is_superseded(transfer, execution, arrived):
            execution.snapshot_announced = arrived or ""
        execution.snapshot_arrived = arrived or ""
        missing = is_transfer_due(execution) and execution.snapshot_announced == transfer.announced
        if not is_transfer_due(execution):
            execution.snapshot_due_since = None
            execution.snapshot_error_code = execution.snapshot_error = ""
            if late:
                transaction.record_event(WorkspaceArrived(commit=execution.snapshot_arrived))
        execution.save(update_fields=_STATE)
    if missing:
        raise SnapshotMissing
    if code and not is_transfer_due(execution):
        log.info("session %s: its newest snapshot has arrived", transfer.session_id)
    return not is_transfer_due(execution)


def _is_superseded(transfer: Transfer, execution: ExecutorRunning, arrived: str) -> bool:
    """Whether another session in the same worktree has taken a newer snapshot under the same ref."""
    owner = transfer.owner_id
    beside = ExecutorRunning.objects.filter(Q(worktree_id=owner) | Q(session_id=owner), snapshot_announced=arrived)
    unchanged = execution.snapshot_announced == transfer.announced
    return bool(arrived) and unchanged and beside.exclude(id=execution.id).exists()


def record_failure(transfer: Transfer, error: ExecutorError) -> None:
    """Write why a push failed. The first failure of an outage is logged, counted and put into the session's log.

    Raises LeaseLost.
    """
    with session_transaction(transfer.session_id, transfer.lease) as transaction:
        execution = transaction.execution
        if execution is None or not is_transfer_due(execution):
            return
        is_first = not execution.snapshot_error_code
        failure = {"error_code": error.code, "error_message": error.message[:2000]}
        execution.snapshot_error_code, execution.snapshot_error = failure["error_code"], failure["error_message"]
        execution.save(update_fields=_STATE)
        if is_first:
            transaction.record_event(WorkspaceDelayed(commit=execution.snapshot_announced, **failure))
    if is_first:
        METRICS_BUFFER.count("kandev_workspace_transfer_outages_total", runtime=transfer.facts.runtime)
        log.warning("session %s: its newest snapshot has not arrived: %s", transfer.session_id, error.message)


def record_refused_publication(transfer: Transfer, error: PublicationRefused) -> None:
    """Write that work which has arrived is not in the team's repository. Raises LeaseLost."""
    with session_transaction(transfer.session_id, transfer.lease) as transaction:
        transaction.record_event(
            WorkspaceUnpublished(commit=transfer.announced, error_code=error.code, error_message=error.message[:2000])
        )
    log.warning("session %s: its work is not published: %s", transfer.session_id, error.message)


MAX_PUSHES: Final = 4
"""Concurrent pushes from one place; each place has its own limit, so that a silent one delays only its own sessions."""
MAX_REPOSITORY_PUSHES: Final = MAX_PUSHES - 1
"""Concurrent pushes of sessions of one repository: however slow they are, other repositories' have room everywhere."""
MAX_MISSING_TRIES: Final = 5
"""Tries after which a snapshot missing from the workspace counts as lost: its successor may not be announced yet."""


class WorkspaceSync:
    """Transfers snapshots, at most one at a time for each execution; what becomes due meanwhile follows."""

    def __init__(self, database: DatabaseThread, owner: str) -> None:
        self._database, self._owner = database, owner
        self._due: set[uuid.UUID] = set()
        self._pushes: dict[uuid.UUID, asyncio.Task[None]] = {}
        self._repositories: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(MAX_REPOSITORY_PUSHES)
        )
        self._gates: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(MAX_PUSHES))
        self._unpublished: set[uuid.UUID] = set()
        """Executions whose refused publication is recorded; kept in memory, so that a restart records it again."""
        self._given_up: dict[uuid.UUID, str] = {}
        """Snapshots that cannot arrive as things stand; kept in memory only, so that a restart tries them again."""

    def request(self, facts: ExecutionFacts) -> None:
        """Push after a new snapshot; does nothing if the runtime keeps its work in the team's repository anyway."""
        if isinstance(runtime(facts.runtime), SupportsPush):
            self._request(uuid.UUID(facts.id))

    async def catch_up(self) -> None:
        """Push whatever has not arrived: a kill may have come between a snapshot and its transfer."""
        due = await self._database(load_due_transfers, self._owner)
        for execution_id, announced in due.items():
            if execution_id not in self._pushes and self._given_up.get(execution_id) != announced:
                self._request(execution_id)

    async def close(self) -> None:
        """Leave the rest to the next supervisor, which compares what has arrived with the newest snapshot."""
        pushes = list(self._pushes.values())
        for push in pushes:
            push.cancel()
        await asyncio.gather(*pushes, return_exceptions=True)

    def _request(self, execution_id: uuid.UUID) -> None:
        self._due.add(execution_id)
        if execution_id not in self._pushes:
            push = asyncio.create_task(self._push(execution_id), name=f"workspace sync {execution_id}")
            self._pushes[execution_id] = push

    async def _push(self, execution_id: uuid.UUID) -> None:
        actor_context.begin_context(cause="workspace sync", execution_id=execution_id)
        backoff, missing = Backoff(), 0
        try:
            while execution_id in self._due:
                self._due.discard(execution_id)
                try:
                    if await self._transfer(execution_id, is_lost=missing + 1 >= MAX_MISSING_TRIES):
                        backoff, missing = Backoff(), 0
                        continue
                except SnapshotMissing:
                    missing += 1
                except Exception:
                    # Not even the row could be read or written: only the first failure is logged as an error.
                    level = logging.ERROR if backoff.is_reset else logging.DEBUG
                    log.log(level, "execution %s: its work could not be transferred", execution_id, exc_info=True)
                self._due.add(execution_id)
                await asyncio.sleep(backoff.record_failure())
        finally:
            self._due.discard(execution_id)
            del self._pushes[execution_id]

    async def _transfer(self, execution_id: uuid.UUID, *, is_lost: bool) -> bool:
        """Try once; True if there is nothing more to do for now. Raises SnapshotMissing unless ``is_lost``."""
        transfer = await self._database(begin_transfer, self._owner, execution_id)
        if transfer is None:
            return True  # another supervisor's, or gone with its session
        try:
            arrived = await self._push_and_verify(transfer)
            return await self._database(record_arrival, transfer, arrived)
        except LeaseLost:
            return False  # the next try finds out who holds it
        except SnapshotMissing as error:
            if not is_lost:
                raise
            return await self._failed(transfer, error, final=True)
        except ExecutorError as error:
            return await self._failed(transfer, error, final=error.permanent)
        except Exception as error:
            log.debug("session %s: a push failed", transfer.session_id, exc_info=True)
            return await self._failed(transfer, RuntimeUnavailable(f"The transfer failed: {error!r}"), final=False)

    async def _push_and_verify(self, transfer: Transfer) -> str | None:
        """Push, and return what the archive has now: what was announced proves nothing."""
        facts = transfer.facts
        place = runtime(facts.runtime)
        assert isinstance(place, SupportsPush)  # noqa: S101  (asked when it became due)
        async with (
            self._repositories[facts.repository_path],
            self._gates[place_of(facts)],
        ):
            try:
                await place.push_work(facts)
            except PublicationRefused as error:
                await self._record_refused_publication(transfer, error)
        return await asyncio.to_thread(workspace_store.newest_snapshot, transfer.owner_id)

    async def _record_refused_publication(self, transfer: Transfer, error: PublicationRefused) -> None:
        """Record once that the work, which has arrived in the archive, may not be published."""
        execution_id = uuid.UUID(transfer.facts.id)
        if execution_id not in self._unpublished:
            await self._database(record_refused_publication, transfer, error)
            self._unpublished.add(execution_id)

    async def _failed(self, transfer: Transfer, error: ExecutorError, *, final: bool) -> bool:
        try:
            await self._database(record_failure, transfer, error)
        except LeaseLost:
            return False
        if final:
            self._given_up[uuid.UUID(transfer.facts.id)] = transfer.announced
        return final
