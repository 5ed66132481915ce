"""What is known of the hosts: their processes, the sessions on them, and what is down."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.db.models import Count, F, Max, Min, OuterRef, Q, QuerySet, Subquery, Window
from django.db.models.functions import Now, RowNumber

from executors_app.models import ExecutorRunning
from sessions_app.hosts.intervals import silent_after
from sessions_app.hosts.models import Host, HostMaintenance, HostProcess, Role
from sessions_app.hosts.rules.life_signs import LABELS, TONES, Life, judge_life
from sessions_app.hosts.supervision import (
    Supervision,
    bound_executions,
    bound_runtimes,
    sessions_by_place,
    unattended_hosts,
)
from sessions_app.models import DataSize

MAX_HOSTS: Final = 200
"""Hosts that are listed because they reported last; as many that have agents but no supervisor are listed, too."""
MAX_PROCESSES: Final = 30
"""Processes of a host that are read: those that have not ended, then those that reported last."""
MAX_PLACES: Final = 1000
MAX_SIZES: Final = 500
MAX_WRONG_KEYS: Final = 10
MAX_STOPPED: Final = 10
"""Processes of a host that have stopped and are listed, the newest ones: each restart leaves one."""


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """A process of a host, and what is known of it."""

    row: HostProcess
    life: Life

    @property
    def label(self) -> str:
        """What is known of it, as on the page."""
        return LABELS[self.life]

    @property
    def tone(self) -> str:
        """How its label is marked."""
        return TONES[self.life]


@dataclass(frozen=True, slots=True)
class HostReport:
    """A host with its processes and the sessions whose agents run on it."""

    host: Host
    processes: Sequence[ProcessReport]
    sessions: int
    """Agents on it that start or run, of runtimes that only this host reaches."""
    is_unattended: bool
    """Whether it has such agents but no living supervisor."""
    oldest_request_at: datetime | None = None
    """When the oldest request was made that waits for its supervisor, as for a start or a stop; None: none waits."""
    maintenance: HostMaintenance | None = None
    """What people have decided about it; None: it is in service."""

    @property
    def is_up(self) -> bool:
        """Whether any of its processes reports."""
        return any(one.life is Life.UP for one in self.processes)

    @property
    def service_state(self) -> str:
        """What people have decided about it, in a word; empty if it is in service."""
        return service_state(self.maintenance)

    @property
    def newest(self) -> HostProcess | None:
        """The process that reported last: its figures are those of the host."""
        return max((one.row for one in self.processes), key=lambda row: row.beat_at, default=None)

    @property
    def newest_up(self) -> HostProcess | None:
        """The process that reported last, if any is up: only its figures are those of now."""
        return max((one.row for one in self._up()), key=lambda row: row.beat_at, default=None)

    def fullest_processes(self) -> dict[str, HostProcess]:
        """Return, for each role, the process that is up and has most files open, where that is known."""
        known = [one.row for one in self._up() if one.row.open_files is not None]
        return {row.role: row for row in sorted(known, key=lambda row: row.open_files or 0)}

    def _up(self) -> list[ProcessReport]:
        return [one for one in self.processes if one.life in (Life.UP, Life.STOPPING)]


def service_state(row: HostMaintenance | None) -> str:
    """Return what people have decided about a host, in a word; empty if it is in service."""
    if row is None:
        return ""
    if row.lost_at is not None:
        return "lost"
    if row.draining_at is not None:
        return "draining"
    return "cordoned"


def list_hosts() -> list[HostReport]:
    """Return the hosts and their processes, those that reported last first; at most five queries.

    However many others have come since, hosts with agents but without a supervisor are among them.
    """
    sessions = sessions_by_place()
    unattended = Supervision().name_unattended(sessions)
    by_host: defaultdict[Host, list[Any]] = defaultdict(list)
    for row in _newest_processes(sorted(unattended)[:MAX_HOSTS]):
        by_host[row.host].append(row)
    requests = _oldest_requests()
    return [_report(host, own, sessions, unattended, requests) for host, own in by_host.items()]


def _newest_processes(unattended: Collection[str]) -> QuerySet[HostProcess]:
    """Return the newest processes of the hosts that reported last, and of those at the unattended places."""
    reported_last = HostProcess.objects.order_by().values("host").annotate(at=Max("beat_at")).order_by("-at")
    newest = reported_last.values("host")[:MAX_HOSTS]
    at_places = HostProcess.objects.filter(place__in=unattended).order_by().values("host")
    # For each host: otherwise the restarts of one would hide another one that has been silent for long.
    first = [F("ended_at").desc(nulls_first=True), F("beat_at").desc()]
    number = Window(RowNumber(), partition_by="host_id", order_by=first)
    rows = HostProcess.objects.filter(Q(host__in=newest) | Q(host__in=at_places))
    rows = rows.annotate(now=Now(), number=number).filter(number__lte=MAX_PROCESSES)
    return rows.select_related("host__maintenance").order_by("-beat_at")


def list_data_sizes() -> list[DataSize]:
    """Return how much room each kind of data takes on each host, as measured last."""
    return list(DataSize.objects.order_by("host", "what")[:MAX_SIZES])


def _report(
    host: Host,
    rows: Iterable[Any],
    sessions: Mapping[str, int],
    unattended: Collection[str],
    requests: Mapping[str, datetime],
) -> HostReport:
    limit = silent_after()
    reports = [
        ProcessReport(row, judge_life(row.beat_at, row.ended_at, row.now, row.stopping_at, silent_after=limit))
        for row in rows
    ]
    places = {one.row.place for one in reports}
    older = [one for one in reports if one.life is Life.STOPPED][MAX_STOPPED:]
    processes = [one for one in reports if one not in older]
    return HostReport(
        host,
        processes,
        sum(sessions.get(place, 0) for place in places),
        any(place in unattended for place in places),
        min((requests[place] for place in places if place in requests), default=None),
        getattr(host, "maintenance", None),
    )


def _oldest_requests() -> dict[str, datetime]:
    """Return when the oldest open request was made of the sessions of each place; one query."""
    rows = ExecutorRunning.objects.filter(
        runtime__in=bound_runtimes(),
        session__agent_execution_id=F("id"),
        session__intents__isnull=False,
        session__intents__done_at=None,
    ).exclude(host_id="")
    found = rows.order_by().values_list("host_id").annotate(at=Min("session__intents__created_at"))
    return dict(found)


def names_of_places() -> dict[str, str]:
    """Return the name of each known place (``ExecutorRunning.host_id``)."""
    rows = HostProcess.objects.order_by().values_list("place", "host__name").annotate(at=Max("beat_at"))
    return {place: name for place, name, _ in reversed(rows.order_by("-at")[:MAX_PLACES])}


def describe_down() -> list[str]:
    """Return what is down, in words: roles that have no process left, and hosts with agents but no supervisor.

    A role that has never reported is unknown, as during an upgrade from a release without signs of life, and not named.
    """
    return [*_workers_down(), *(f"supervisor on {name}" for name in unattended_hosts(bound_executions()))]


def roles_down() -> list[str]:
    """Return which roles are down, somewhere, for readers who may not see names of hosts."""
    if unattended_hosts(bound_executions()):
        return [*_workers_down(), Role.SUPERVISOR.value]
    return _workers_down()


def is_worker_down() -> bool:
    """Whether workers have reported, and none does any more: schedules, mail and webhooks then stand still."""
    return worker_down_since() is not None


def worker_down_since() -> datetime | None:
    """Return when the last worker reported, if none does any more; None if one is up or none has ever reported."""
    workers = HostProcess.objects.filter(role=Role.WORKER)
    found = workers.aggregate(up=Max("beat_at", filter=_is_up()), newest=Max("beat_at"))
    if found["up"] is not None:
        return None
    newest: datetime | None = found["newest"]
    return newest


def count_processes() -> dict[tuple[str, str], int]:
    """Return how many processes of each role are up, and how many are silent; zeros too."""
    counts = {(role.value, life.value): 0 for role in Role for life in (Life.UP, Life.SILENT)}
    rows = HostProcess.objects.filter(ended_at=None).order_by().values_list("role")
    for role, up, in_all in rows.annotate(up=Count("id", filter=_is_up()), in_all=Count("id")):
        counts[role, Life.UP.value] = up
        counts[role, Life.SILENT.value] = in_all - up
    return counts


def free_bytes_by_host() -> dict[str, int]:
    """Return what the disk of each host's data directory has left, as its processes that are up last reported it."""
    rows = HostProcess.objects.filter(_is_up(), free_bytes__isnull=False).order_by().values_list("host__name")
    return dict(rows.annotate(free=Min("free_bytes")))


def last_free_bytes(hosts: Collection[str]) -> dict[str, int]:
    """Return what the disk of each of these hosts had left when it last said so; without hosts that are lost."""
    reports = HostProcess.objects.filter(host__name=OuterRef("name"), free_bytes__isnull=False).order_by("-beat_at")
    rows = Host.objects.filter(name__in=hosts, maintenance__lost_at=None)
    rows = rows.annotate(free=Subquery(reports.values("free_bytes")[:1])).exclude(free=None)
    return dict(rows.order_by().values_list("name", "free"))


def hosts_in_use() -> QuerySet[HostProcess, str]:
    """Return the names of hosts with a process that has not ended, as far as is known, and that are not lost."""
    rows = HostProcess.objects.filter(ended_at=None, host__maintenance__lost_at=None)
    return rows.order_by().values_list("host__name", flat=True).distinct()


def max_backup_age() -> float:
    """Return how many seconds old a backup may be: the least setting of the running processes; 0: any age.

    All processes get the same answer, also if their settings differ.
    """
    used = HostProcess.objects.filter(_is_up()).order_by().values_list("process__backup_max_age", flat=True)
    known = [age for age in used if isinstance(age, int | float)]
    if not known:
        return float(settings.KANDEV_BACKUP_MAX_AGE)
    return min((age for age in known if age > 0), default=0.0)


def processes_with_wrong_key() -> list[str]:
    """Return role and host of processes that are up and whose secret key is not that of the database, a few of them."""
    rows = HostProcess.objects.filter(_is_up(), process__has_wrong_key=True).order_by("host__name", "role")
    found = rows.values_list("role", "host__name").distinct()[:MAX_WRONG_KEYS]
    return [f"{Role(role).label.lower()} on {host}" for role, host in found]


def count_unattended() -> int:
    """Return how many hosts have agents that only a supervisor there reaches, and none that is alive."""
    return len(unattended_hosts(bound_executions()))


def _is_up() -> Q:
    """Return the condition for what `judge_life` calls up."""
    return Q(ended_at=None, beat_at__gte=Now() - silent_after())


def _workers_down() -> list[str]:
    if is_worker_down():
        return [Role.WORKER.value]
    return []
