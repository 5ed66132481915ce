"""Who may command an execution.

The lock of an embedded database, leases with generations, and the heartbeat of this supervisor.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from executors_app.agentctl.process import identity
from executors_app.domain import ExecutorStatus
from executors_app.models import ExecutorRunning
from executors_app.plugins import UnknownPlugin, runtime
from sessions_app.domain.recovery import MAX_CLOCK_SKEW
from sessions_app.models import Lease, LeaseLost, Supervisor

LockHolder = Literal["supervise", "sweep", "run"]


def is_shared_database() -> bool:
    """Whether several supervisors may have this database at once."""
    return connection.vendor == "postgresql"


class LockUnusable(Exception):
    """The lock file cannot be opened: it is another user's, or its disk is read-only."""


class SupervisorLock:
    """The right to supervise this database; PostgreSQL needs none, its leases are enough."""

    def __init__(self, holder: LockHolder):
        self.holder = holder
        self.path = Path(settings.KANDEV_DATA_DIR) / "supervisor.lock"
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Take it without waiting; True when it is ours. Raises LockUnusable."""
        if is_shared_database():
            return True
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LockUnusable(f"{self.path} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"holder": self.holder, "pid": os.getpid()}).encode(), 0)
        self._descriptor = descriptor
        return True

    def held_by(self) -> str:
        """Who holds it, as far as the file tells."""
        try:
            told = json.loads(self.path.read_text() or "{}")
        except (OSError, ValueError):
            return ""
        return str(told.get("holder", ""))

    def release(self) -> None:
        """Give it back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def database_now() -> datetime:
    """The database's clock: leases of several hosts are compared by it alone."""
    if connection.vendor != "postgresql":
        return timezone.now()  # SQLite: one host, one clock
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        row = cursor.fetchone()
    now: datetime = row[0]
    return now


def lease_ttl() -> timedelta:
    """How long a lease lives without a renewal."""
    return timedelta(seconds=settings.KANDEV_LEASE_TTL)


def is_unexpired(expires: datetime | None, now: datetime) -> bool:
    """Whether a lease until then counts; one that a wrong clock has given for ever does not."""
    return expires is not None and now < expires <= now + MAX_CLOCK_SKEW


def is_owner_dead(owner: str) -> bool:
    """Whether the supervisor of that boot id is provably gone: same host, its pid and start time not alive."""
    row = Supervisor.objects.filter(boot_id=owner).first()
    if row is None or row.host_id != identity.host_id():
        return False
    return not identity.is_alive(identity.ProcessIdentity.from_json(row.process))


def is_local_execution(execution: ExecutorRunning) -> bool:
    """Whether this machine may look after it (rule 2); one of an unknown runtime is nobody's in particular."""
    if execution.host_id in ("", identity.host_id()):
        return True
    try:
        return runtime(execution.runtime).can_manage(execution.facts("", ""))
    except UnknownPlugin:
        return True


def leased_by_others(rows: Iterable[tuple[uuid.UUID, str, datetime | None]], me: str) -> set[uuid.UUID]:
    """Of rows of (id, owner, end of the lease) the ids of those that another living supervisor holds."""
    now = database_now()
    dead: dict[str, bool] = {}
    held = set()
    for key, owner, expires in rows:
        if owner in ("", me) or not is_unexpired(expires, now):
            continue
        if owner not in dead:
            dead[owner] = is_owner_dead(owner)
        if not dead[owner]:
            held.add(key)
    return held


def load_orphaned_sessions(me: str) -> set[tuple[uuid.UUID, str]]:
    """Sessions that claim to run and that no living supervisor holds, with who held them last."""
    here = Supervisor.objects.filter(host_id=identity.host_id()).exclude(boot_id=me)
    dead = [row.boot_id for row in here if not identity.is_alive(identity.ProcessIdentity.from_json(row.process))]
    free = Q(owner="") | Q(owner__in=dead) | Q(lease_expires_at=None) | Q(lease_expires_at__lte=database_now())
    claims = ExecutorRunning.objects.filter(status__in=(ExecutorStatus.STARTING, ExecutorStatus.READY))
    return set(claims.filter(free).exclude(owner=me).values_list("session_id", "owner"))


def get_lease(session_id: uuid.UUID, me: str) -> Lease | None:
    """The lease of a session's execution, if ``me`` has it."""
    row = ExecutorRunning.objects.filter(session_id=session_id, owner=me).order_by("-created_at").first()
    return Lease(me, row.generation, str(row.id)) if row else None


def acquire_lease(execution_id: uuid.UUID, me: str, reported: int = 0) -> Lease | None:
    """Take one execution over; None where ``acquire_all`` would leave it out."""
    return acquire_leases({execution_id: reported}, me).get(execution_id)


def acquire_leases(reported: Mapping[uuid.UUID, int], me: str) -> dict[uuid.UUID, Lease]:
    """Take executions over; left out is what somebody else holds, was quicker to take, or should have.

    ``reported`` holds by id the generation that agentctl has seen. A lease that is ours already is kept. Those that
    are alike in owner and generation are taken by one guarded UPDATE. Raises LeaseLost where that finds some of
    them only: then nothing is taken, and each can be tried alone.
    """
    alike = defaultdict(list)
    with transaction.atomic():
        rows = ExecutorRunning.objects.select_for_update(no_key=True).filter(id__in=reported)
        found = list(rows.order_by("session_id").only("owner", "lease_expires_at", "generation", "host_id"))
        others = leased_by_others([(row.id, row.owner, row.lease_expires_at) for row in found], me) | _on_other_hosts(
            found
        )
        for row in found:
            if row.id not in others:
                alike[row.owner, row.generation, _next_generation(row, me, reported[row.id])].append(row.id)
        ends = database_now() + lease_ttl()
        taken: dict[uuid.UUID, Lease] = {}
        for (owner, before, generation), ids in alike.items():
            guarded = ExecutorRunning.objects.filter(id__in=ids, owner=owner, generation=before)
            won = guarded.update(owner=me, generation=generation, lease_expires_at=ends)
            if won == len(ids):
                taken |= {key: Lease(me, generation, str(key)) for key in ids}
            elif won:
                raise LeaseLost
    return taken


def _on_other_hosts(executions: Iterable[ExecutorRunning]) -> set[uuid.UUID]:
    """Those that this machine may not look after; whole rows are read only of those that name another."""
    here = ("", identity.host_id())
    named = [execution.id for execution in executions if execution.host_id not in here]
    return {
        execution.id for execution in ExecutorRunning.objects.filter(id__in=named) if not is_local_execution(execution)
    }


def _next_generation(execution: ExecutorRunning, me: str, reported: int) -> int:
    """Above all that is known (rule 17); ours stays as it is unless agentctl has seen a newer one."""
    if execution.owner == me and execution.generation >= reported:
        return execution.generation
    return max(execution.generation, reported) + 1


def renew_leases(me: str) -> set[uuid.UUID]:
    """Prolong every lease of ``me``; returns the executions that are still its own.

    The rows are locked in the order in which ingest locks several, else both would wait for each other.
    """
    mine = ExecutorRunning.objects.filter(owner=me)
    with transaction.atomic():
        list(mine.select_for_update(no_key=True).order_by("session_id").values_list("id"))
        mine.update(lease_expires_at=database_now() + lease_ttl())
    return set(mine.values_list("id", flat=True))


def release_leases(me: str, execution_id: uuid.UUID | None = None) -> None:
    """Give leases of ``me`` back, one or all; the generation stays."""
    mine = ExecutorRunning.objects.filter(owner=me)
    if execution_id is not None:
        mine = mine.filter(id=execution_id)
    mine.update(owner="", lease_expires_at=None)


KEEP_ROWS = timedelta(days=7)
"""How long the rows of dead supervisors stay, to tell whether a lease's owner is dead."""


def register_supervisor(boot_id: str) -> None:
    """Say that this process supervises, before it takes any lease."""
    Supervisor.objects.filter(beat_at__lt=Now() - KEEP_ROWS).delete()
    Supervisor.objects.create(
        boot_id=boot_id,
        host_id=identity.host_id(),
        process=identity.identify_self().to_json(),
        started_at=Now(),
        beat_at=Now(),
    )


def record_heartbeat(boot_id: str) -> None:
    """Say that it still lives."""
    Supervisor.objects.filter(boot_id=boot_id).update(beat_at=Now())


def mark_first_sweep_done(boot_id: str) -> None:
    """Say that its first pass has seen every row: pages may be believed."""
    Supervisor.objects.filter(boot_id=boot_id).update(swept_at=Now())


def unregister_supervisor(boot_id: str) -> None:
    """It ends in order and holds no lease any more."""
    Supervisor.objects.filter(boot_id=boot_id).delete()
