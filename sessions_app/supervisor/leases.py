"""Who commands an execution: one owner at a time, each take-over with a higher generation (rules 17-19)."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from executors_app.agentctl import identity
from executors_app.models import ExecutorRunning
from sessions_app.models import Lease, Supervisor


def database_now() -> datetime:
    """The database's clock: leases of several hosts are compared by it alone."""
    if connection.vendor != "postgresql":
        return timezone.now()  # SQLite: one host, one clock
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        row = cursor.fetchone()
    now: datetime = row[0]
    return now


def ttl() -> timedelta:
    """How long a lease lives without a renewal."""
    return timedelta(seconds=settings.KANDEV_LEASE_TTL)


def is_free(execution: ExecutorRunning, me: str, now: datetime) -> bool:
    """Whether ``me`` may take the lease: it is nobody's, ours, run out, or its owner is provably dead."""
    if execution.owner in ("", me):
        return True
    expires = execution.lease_expires_at
    return expires is None or expires <= now or is_dead(execution.owner)


def is_dead(owner: str) -> bool:
    """Whether the supervisor of that boot id is provably gone: same host, its pid and start time not alive."""
    row = Supervisor.objects.filter(boot_id=owner).first()
    if row is None or row.host_id != identity.host_id():
        return False
    return not identity.is_alive(identity.ProcessIdentity.from_json(row.process))


def acquire(execution_id: uuid.UUID, me: str, reported: int = 0) -> Lease | None:
    """Take an execution over by one guarded UPDATE; None where somebody else holds it or was quicker.

    ``reported`` is the generation that agentctl has seen. A lease that is ours already is kept.
    """
    with transaction.atomic():
        now = database_now()
        execution = ExecutorRunning.objects.select_for_update().filter(id=execution_id).first()
        if execution is None or not is_free(execution, me, now):
            return None
        held = execution.owner == me and execution.generation >= reported
        generation = execution.generation if held else max(execution.generation, reported) + 1
        won = ExecutorRunning.objects.filter(
            Q(owner=execution.owner), id=execution_id, generation=execution.generation
        ).update(owner=me, generation=generation, lease_expires_at=now + ttl())
    return Lease(me, generation) if won else None


def renew(me: str) -> set[uuid.UUID]:
    """Prolong every lease of ``me``; returns the executions that are still its own."""
    mine = ExecutorRunning.objects.filter(owner=me)
    mine.update(lease_expires_at=database_now() + ttl())
    return set(mine.values_list("id", flat=True))


def release(me: str, execution_id: uuid.UUID | None = None) -> None:
    """Give leases of ``me`` back, one or all; the generation stays."""
    mine = ExecutorRunning.objects.filter(owner=me)
    if execution_id is not None:
        mine = mine.filter(id=execution_id)
    mine.update(owner="", lease_expires_at=None)
