"""Place a session of a pool on an executor when it first starts, or note why it waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from django.db.models import Count

from executors_app import capacity
from executors_app.machine.process import identity
from executors_app.models import Executor, ExecutorRunning, split_labels
from sessions_app.hosts.models import HostMaintenance, HostProcess
from sessions_app.kernel.rules.states import DesiredState
from sessions_app.models import (
    FITS,
    PLACEMENT_WAIT,
    QUEUED_FOR_CAPACITY,
    Intent,
    RepositorySighting,
    SessionTransaction,
    Supervisor,
    TaskSession,
)
from sessions_app.placement import sightings
from sessions_app.placement.events import Placed as PlacedEvent
from sessions_app.placement.rules.pools import Candidate, Placed, Waiting, choose_executor
from sessions_app.placement.services.executor_hosts import depends_on_host
from sessions_app.placement.services.waiting import waiting_starts, waits_for
from sessions_app.recovery.rules.resumability import HOST_LOST
from sessions_app.sessions.services.intents import due_intents
from sessions_app.supervisor import leases

NEVER_LAUNCHED: Final = ("new", HOST_LOST)
"""``status_reason`` of an execution that was never launched: only such a one may change its place. After the loss of a
host, its sessions get one that is on no host yet.
"""


def needs_place(session: TaskSession, execution: ExecutorRunning | None) -> bool:
    """Whether its pool has yet to choose the executor of a session that is to start."""
    if not session.executor_pool or session.desired_state != DesiredState.RUNNING:
        return False
    return execution is not None and not execution.host_id and execution.status_reason in NEVER_LAUNCHED


def place_session(transaction: SessionTransaction, intent_id: UUID) -> bool:
    """Choose the executor of a session; return whether this supervisor may go on with its start.

    The executors of the pool stay locked until the transaction ends: of two supervisors that want the last place, the
    second counts what the first has taken. Before the lease is taken, because another host may have to start it.
    """
    session = transaction.session
    intent = Intent.objects.select_for_update().filter(id=intent_id, done_at=None).first()
    if intent is None or intent.claimed_generation is not None:
        return True
    hosts = _load_hosts(session)
    members = _lock_members(session.executor_pool)
    found = choose_executor(
        session.executor_pool,
        _describe_members(members, session, intent, hosts),
        _wanted_labels(session),
        hosts.repository_path,
    )
    if isinstance(found, Waiting):
        _note_waiting(intent, found)
        return False
    chosen = next(one for one in members if one.id == found.executor_id)
    if not hosts.may_start_here(chosen):
        return False
    _place(transaction, intent, chosen, found)
    return True


def _wanted_labels(session: TaskSession) -> frozenset[str]:
    repository = session.task.repository
    if repository is None:
        return frozenset()
    return split_labels(repository.executor_labels)


def _lock_members(pool: str) -> Sequence[Executor]:
    rows = Executor.objects.select_for_update(no_key=True).filter(pool=pool, disabled_at=None)
    return list(rows.order_by("id"))


@dataclass(frozen=True, slots=True)
class _Hosts:
    """What placement knows of the hosts; ``attended`` is None where it does not matter."""

    own: int | None
    attended: frozenset[int] | None
    cordoned: frozenset[int]
    sightings: Mapping[int, bool]
    repository_path: str

    def may_start_here(self, executor: Executor) -> bool:
        """Whether the supervisor of this process may start sessions on an executor."""
        if self.attended is None:
            return True
        if executor.host_id is not None:
            return executor.host_id == self.own
        return self.own is None or self.sightings.get(self.own) is not False

    def is_attended(self, executor: Executor) -> bool:
        """Whether a supervisor can start sessions there."""
        return self.attended is None or executor.host_id is None or executor.host_id in self.attended

    def has_repository(self, executor: Executor) -> bool | None:
        """Whether a host of the executor has the repository; None: not known."""
        if self.attended is None:
            return None
        hosts = self.attended
        if executor.host_id is not None:
            hosts = frozenset({executor.host_id})
        known = {self.sightings.get(host) for host in hosts}
        if True in known:
            return True
        if None in known or not known:
            return None
        return False


def _load_hosts(session: TaskSession) -> _Hosts:
    """Load what matters of the hosts; no query on an embedded database, where there is only one."""
    repository = session.task.repository
    path = "" if repository is None else repository.path
    if repository is None or not leases.is_shared_database() or not depends_on_host(session.executor.runtime):
        return _Hosts(None, None, frozenset(), {}, path)
    places = {identity.host_id(), *Supervisor.objects.alive().values_list("host_id", flat=True)}
    attended = HostProcess.objects.filter(place__in=places).order_by().values_list("host_id", flat=True).distinct()
    # Each row takes its host out of service; one that was declared lost starts nothing before it has cleaned up.
    cordoned = HostMaintenance.objects.values_list("host_id", flat=True)
    known = RepositorySighting.objects.filter(repository=repository).values_list("host_id", "is_present")
    own = sightings.find_own_host()
    # After a boot, a supervisor may claim starts before it has reported.
    own_too = set() if own is None else {own}
    return _Hosts(own, frozenset(attended) | own_too, frozenset(cordoned), dict(known), path)


def _describe_members(
    members: Sequence[Executor], session: TaskSession, intent: Intent, hosts: _Hosts
) -> Sequence[Candidate]:
    live = capacity.live_executions(members).exclude(session=session).order_by()
    used = Counter(live.values_list("executor_id", flat=True))
    ahead = _count_ahead(members, session.executor_pool, intent)
    return [
        Candidate(
            id=one.id,
            name=one.name,
            labels=one.label_set,
            limit=one.max_live or 0,
            used=used[one.id],
            ahead=ahead[one.id],
            is_attended=hosts.is_attended(one),
            is_cordoned=one.host_id in hosts.cordoned,
            has_repository=hosts.has_repository(one),
        )
        for one in members
    ]


def _count_ahead(members: Collection[Executor], pool: str, intent: Intent) -> Mapping[UUID, int]:
    """Count the starts that have waited for room on each executor since before this one; one query."""
    earlier = waiting_starts().filter(due_intents(), created_at__lt=intent.created_at).exclude(id=intent.id)
    counts = {f"n{number}": Count("id", filter=waits_for(one.id, pool)) for number, one in enumerate(members)}
    if not counts:
        return {}
    found: Mapping[str, int] = earlier.aggregate(**counts)
    return {one.id: found[f"n{number}"] for number, one in enumerate(members)}


def _note_waiting(intent: Intent, found: Waiting) -> None:
    """Note on a start what it waits for; writes only what has changed."""
    payload = {name: value for name, value in intent.payload.items() if name not in _NOTES}
    if found.cause:
        payload[PLACEMENT_WAIT] = found.cause
    else:
        payload |= {QUEUED_FOR_CAPACITY: True, FITS: {str(one): True for one in found.fits}}
    if payload != intent.payload:
        intent.payload = payload
        intent.save(update_fields=["payload"])


_NOTES: Final = frozenset({PLACEMENT_WAIT, QUEUED_FOR_CAPACITY, FITS})


def _place(transaction: SessionTransaction, intent: Intent, chosen: Executor, found: Placed) -> None:
    """Move a session that was never launched to the executor, with the reason in its row and its log."""
    if not _NOTES.isdisjoint(intent.payload):
        intent.payload = {name: value for name, value in intent.payload.items() if name not in _NOTES}
        intent.save(update_fields=["payload"])
    session, execution = transaction.session, transaction.execution
    if execution is not None and execution.executor_id != chosen.id:
        execution.executor, execution.runtime = chosen, chosen.runtime
        execution.save(update_fields=["executor", "runtime"])
    transaction.set_fields(executor=chosen, placement_reason=found.reason)
    transaction.record_event(
        PlacedEvent(pool=session.executor_pool, executor_id=str(chosen.id), executor=chosen.name, reason=found.reason)
    )
