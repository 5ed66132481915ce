"""Leases with generations, taking over executions in bulk, the lock of an embedded database, and the heartbeat.

A lease is the right to command an execution and to write its output. It ends when it is not renewed. Each take-over
raises its generation: agentctl refuses commands, and the database refuses writes, under an older one.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils import timezone

from executors_app.machine.process import identity
from executors_app.models import ExecutorRunning
from executors_app.plugins import UnknownPlugin, runtime
from executors_app.wire.executions import ExecutionFacts, ExecutorStatus
from sessions_app.models import Lease, LeaseLost, Supervisor
from sessions_app.recovery.rules.resumability import MAX_CLOCK_SKEW

LockHolder = Literal["supervise", "sweep", "run"]


def is_shared_database() -> bool:
    """Whether several supervisors may use this database at the same time."""
    return connection.vendor == "postgresql"


class LockUnusable(Exception):
    """The lock file cannot be opened: it is another user's, or its disk is read-only."""


class SupervisorLock:
    """The lock that lets one supervisor at a time use an embedded database.

    PostgreSQL needs no lock: there, leases keep several supervisors apart.
    """

    def __init__(self, holder: LockHolder):
        self.holder = holder
        self.path = Path(settings.KANDEV_DATA_DIR) / "supervisor.lock"
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Take the lock without waiting; return whether this process now holds it. Raises LockUnusable."""
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
        # Written after the lock is taken, and never removed: the kernel drops the lock of a killed process, but its
        # name stays in the file until the next holder replaces it.
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"holder": self.holder, "pid": os.getpid()}).encode(), 0)
        self._descriptor = descriptor
        return True

    def held_by(self) -> str:
        """Return the holder named in the file, or an empty string; only ``take`` shows whether it still holds it."""
        try:
            content = json.loads(self.path.read_text() or "{}")
        except (OSError, ValueError):
            return ""
        return str(content.get("holder", ""))

    def release(self) -> None:
        """Release the lock; does nothing if it is not held."""
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
    """Return the time of the database's clock, the only one by which hosts compare leases."""
    if connection.vendor != "postgresql":
        return timezone.now()  # SQLite: one host, one clock
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        row = cursor.fetchone()
    now: datetime = row[0]
    return now


def lease_ttl() -> timedelta:
    """Return how long a lease lasts without a renewal."""
    return timedelta(seconds=settings.KANDEV_LEASE_TTL)


def is_unexpired(expires: datetime | None, now: datetime) -> bool:
    """Whether a lease that ends at ``expires`` is valid; an end that only a wrong clock can have written is not."""
    return expires is not None and now < expires <= now + MAX_CLOCK_SKEW


def is_owner_dead(owner: str) -> bool:
    """Whether the supervisor with this boot id is proven dead: it ran on this host, and its process is gone.

    Pid and start time identify the process, because a pid alone may have been reused. A supervisor of another host
    is never proven dead from here: its leases have to expire.
    """
    row = Supervisor.objects.filter(boot_id=owner).first()
    if row is None or row.host_id != identity.host_id():
        return False
    return identity.is_gone(identity.ProcessIdentity.from_json(row.process))


def is_local_execution(execution: ExecutorRunning) -> bool:
    """Whether this machine may manage the execution: a local one is managed only from its own machine (rule 2).

    An execution whose runtime is unknown may be managed from anywhere.
    """
    if execution.host_id in ("", identity.host_id()):
        return True
    try:
        return runtime(execution.runtime).can_manage(execution.facts("", ""))
    except UnknownPlugin:
        return True


def leased_by_others(rows: Iterable[tuple[uuid.UUID, str, datetime | None]], boot_id: str) -> set[uuid.UUID]:
    """Return the ids of the rows (id, owner, end of the lease) that another living supervisor holds."""
    now = database_now()
    dead: dict[str, bool] = {}
    leased = set()
    for key, owner, expires in rows:
        if owner in ("", boot_id) or not is_unexpired(expires, now):
            continue
        # A lease of a supervisor that was killed on this host need not expire first: its process is proven gone.
        if owner not in dead:
            dead[owner] = is_owner_dead(owner)
        if not dead[owner]:
            leased.add(key)
    return leased


def load_orphaned_sessions(boot_id: str) -> set[tuple[uuid.UUID, str]]:
    """Return the sessions that claim to run and that no living supervisor holds, each with its last owner."""
    here = Supervisor.objects.filter(host_id=identity.host_id()).exclude(boot_id=boot_id)
    dead = [row.boot_id for row in here if identity.is_gone(identity.ProcessIdentity.from_json(row.process))]
    free = Q(owner="") | Q(owner__in=dead) | Q(lease_expires_at=None) | Q(lease_expires_at__lte=database_now())
    claims = ExecutorRunning.objects.filter(status__in=(ExecutorStatus.STARTING, ExecutorStatus.READY))
    return set(claims.filter(free).exclude(owner=boot_id).values_list("session_id", "owner"))


def get_lease(session_id: uuid.UUID, boot_id: str) -> Lease | None:
    """Return the lease of a session's newest execution if ``boot_id`` owns it, else None."""
    row = ExecutorRunning.objects.filter(session_id=session_id, owner=boot_id).order_by("-created_at").first()
    if row:
        return Lease(boot_id, row.generation, str(row.id))
    return None


def acquire_lease(execution_id: uuid.UUID, boot_id: str, reported: int = 0) -> Lease | None:
    """Take over one execution; None if ``acquire_leases`` leaves it out."""
    return acquire_leases({execution_id: reported}, boot_id).get(execution_id)


def acquire_leases(reported: Mapping[uuid.UUID, int], boot_id: str) -> dict[uuid.UUID, Lease]:
    """Take over executions and return their leases by id.

    Left out are executions that another supervisor holds, has just taken, or must manage from its own machine.
    ``reported`` maps each id to the generation that its agentctl has seen. A lease that ``boot_id`` already owns keeps
    its generation. Rows with the same owner and generation are taken by one guarded UPDATE. Raises LeaseLost if the
    UPDATE matches only some of its rows: then nothing is taken, and the caller can try each alone.
    """
    alike = defaultdict(list)
    with transaction.atomic():
        # Ordered by session, as ingest and renewals lock several rows: any other order could deadlock with them.
        rows = ExecutorRunning.objects.select_for_update(no_key=True).filter(id__in=reported)
        found = list(rows.order_by("session_id").only("owner", "lease_expires_at", "generation", "host_id"))
        others = leased_by_others([(row.id, row.owner, row.lease_expires_at) for row in found], boot_id)
        others |= _on_other_hosts(found)
        for row in found:
            if row.id not in others:
                alike[row.owner, row.generation, _next_generation(row, boot_id, reported[row.id])].append(row.id)
        ends = database_now() + lease_ttl()
        taken: dict[uuid.UUID, Lease] = {}
        for (owner, before, generation), ids in alike.items():
            # Guarded by owner and generation as they were read: of two supervisors that want a row, one gets it.
            guarded = ExecutorRunning.objects.filter(id__in=ids, owner=owner, generation=before)
            won = guarded.update(owner=boot_id, generation=generation, lease_expires_at=ends)
            if won == len(ids):
                taken |= {key: Lease(boot_id, generation, str(key)) for key in ids}
            elif won:
                raise LeaseLost
    return taken


def _on_other_hosts(executions: Iterable[ExecutorRunning]) -> set[uuid.UUID]:
    """Return the executions that this machine may not manage; loads full rows only of those on another host."""
    here = ("", identity.host_id())
    named = [execution.id for execution in executions if execution.host_id not in here]
    return {
        execution.id for execution in ExecutorRunning.objects.filter(id__in=named) if not is_local_execution(execution)
    }


def _next_generation(execution: ExecutorRunning, boot_id: str, reported: int) -> int:
    """Return a generation above every known one (rule 17); ours is kept unless agentctl has seen a newer one."""
    if execution.owner == boot_id and execution.generation >= reported:
        return execution.generation
    return max(execution.generation, reported) + 1


def renew_leases(boot_id: str) -> set[uuid.UUID]:
    """Renew every lease of ``boot_id``; return the ids of the executions that it still owns."""
    own = ExecutorRunning.objects.filter(owner=boot_id)
    with transaction.atomic():
        # Locked in the order in which ingest locks several rows: in another order both could wait for each other.
        if not list(own.select_for_update(no_key=True).order_by("session_id").values_list("id")):
            return set()
        own.update(lease_expires_at=database_now() + lease_ttl())
    return set(own.values_list("id", flat=True))


def release_leases(boot_id: str, execution_id: uuid.UUID | None = None) -> None:
    """Release one lease of ``boot_id``, or all of them.

    The generation stays in the row, so that the next owner takes a higher one.
    """
    own = ExecutorRunning.objects.filter(owner=boot_id)
    if execution_id is not None:
        own = own.filter(id=execution_id)
    own.update(owner="", lease_expires_at=None)


KEEP_ROWS = timedelta(days=7)
"""How long rows of dead supervisors are kept: they prove that the owner of a lease is dead."""


def register_supervisor(boot_id: str) -> None:
    """Store the row of this supervisor, and delete outdated rows of others.

    Call it before taking any lease: without the row, it cannot be proven that the owner of a lease is dead.
    """
    Supervisor.objects.filter(beat_at__lt=Now() - KEEP_ROWS).delete()
    Supervisor.objects.create(
        boot_id=boot_id,
        host_id=identity.host_id(),
        process=identity.identify_self().to_json(),
        started_at=Now(),
        beat_at=Now(),
    )


def record_heartbeat(boot_id: str) -> None:
    """Record that this supervisor is alive."""
    Supervisor.objects.filter(boot_id=boot_id).update(beat_at=Now())


def mark_first_sweep_done(boot_id: str) -> None:
    """Record that the first sweep has seen every row, so that pages can rely on the states they show."""
    Supervisor.objects.filter(boot_id=boot_id).update(swept_at=Now())


def unregister_supervisor(boot_id: str) -> None:
    """Delete the row of a supervisor that has released its leases and shuts down."""
    Supervisor.objects.filter(boot_id=boot_id).delete()


_RELATED_COLUMNS = {
    "repository_path": "session__task__repository__path",
    "store_id": "session__task__repository__store_id",
    "base_branch": "session__task__base_branch",
    "config": "executor__config",
}
"""Facts of an execution that are columns of related rows."""
_FACTS = [each.name for each in fields(ExecutionFacts)]
_COLUMNS = [_RELATED_COLUMNS.get(name, name) for name in _FACTS]
_CURSOR = ("journal_epoch", "journal_seq", "session__error_code", "supports_workspace_only")


@dataclass(frozen=True, slots=True)
class TakeoverRequest:
    """A session whose execution is to be taken over."""

    session_id: uuid.UUID
    reported: int
    """The generation that its agentctl reports."""
    workspace_only: bool | None = None
    """Whether its agentctl can serve the workspace without an agent; None: it did not report this."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """An execution that this supervisor has leased."""

    facts: ExecutionFacts
    lease: Lease
    epoch: str
    """The epoch of the journal that the log has read up to ``seq``."""
    seq: int
    error_code: str
    """The session's error code."""


def take_over_executions(boot_id: str, requests: Sequence[TakeoverRequest]) -> list[Takeover | None]:
    """Lease the current execution of each session, in one transaction and a constant number of queries.

    The result is None for a session that another supervisor holds or must manage, and for one without agentctl.
    Raises LeaseLost if others took some of the rows at the same moment, and OperationalError.
    """
    generations = {request.session_id: request.reported for request in requests}
    probed = {request.session_id: request.workspace_only for request in requests}
    with transaction.atomic():
        present = _present_executions(generations)
        acquired = acquire_leases({key: generations[session_id] for key, session_id in present}, boot_id)
        rows = ExecutorRunning.objects.filter(id__in=acquired).values_list("id", "session_id", *_CURSOR, *_COLUMNS)
        taken, changed = {}, defaultdict(list)
        for key, session_id, epoch, seq, error_code, stored, *values in rows:
            taken[session_id] = Takeover(_facts(values), acquired[key], epoch, seq, error_code)
            if probed[session_id] not in (None, stored):
                changed[probed[session_id]].append(key)
        for supports_workspace_only, ids in changed.items():
            ExecutorRunning.objects.filter(id__in=ids).update(supports_workspace_only=supports_workspace_only)
    return [taken.get(request.session_id) for request in requests]


def _present_executions(sessions: Collection[uuid.UUID]) -> list[tuple[uuid.UUID, uuid.UUID]]:
    """Return (execution, session) of each present execution that has an agentctl."""
    rows = ExecutorRunning.objects.filter(session_id__in=sessions, session__agent_execution_id=F("id"))
    return list(rows.exclude(agentctl_url="").values_list("id", "session_id"))


def _facts(values: Sequence[Any]) -> ExecutionFacts:
    """Build the facts like ``ExecutorRunning.facts``; a token that cannot be decrypted counts as empty."""
    facts: dict[str, Any] = dict(zip(_FACTS, values, strict=True))
    for name in ("id", "session_id", "task_id"):
        facts[name] = str(facts[name])
    for name in ("repository_path", "store_id"):
        facts[name] = facts[name] or ""
    if not isinstance(facts["auth_token"], str):
        facts["auth_token"] = ""
    facts["config"] = facts["config"] or {}
    return ExecutionFacts(**facts)
