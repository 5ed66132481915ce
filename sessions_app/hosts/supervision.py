"""Which supervisors are alive, and which hosts have none: every page, list and command asks here.

Agents of some runtimes are reached only from the host that they run on. If that host has no supervisor, nobody reads
what they write, and nothing that is asked of their sessions is carried out, however many supervisors run elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

from django.conf import settings
from django.db.models import Count, Max, Q, QuerySet
from django.db.models.functions import Now

from executors_app.models import ExecutorRunning
from executors_app.plugins import UnknownPlugin, runtime, runtimes
from executors_app.runtimes import BoundToHost
from executors_app.wire.executions import ExecutorStatus
from sessions_app.hosts.models import HostProcess, Role
from sessions_app.models import Supervisor
from sessions_app.supervisor import leases

LIVE: Final = (ExecutorStatus.STARTING, ExecutorStatus.READY)


class Supervision:
    """The living supervisors. Read once, when first asked for: make a new one for each response."""

    @cached_property
    def _living(self) -> list[tuple[str, bool]]:
        rows = Supervisor.objects.alive().values_list("host_id", "swept_at")
        return [(place, swept_at is not None) for place, swept_at in rows]

    @property
    def has_supervisor(self) -> bool:
        """Whether any supervisor is alive."""
        return bool(self._living)

    @property
    def has_swept(self) -> bool:
        """Whether a living supervisor has completed its first sweep."""
        return any(has_swept for _, has_swept in self._living)

    def name_unattended(self, places: Iterable[str]) -> dict[str, str]:
        """Return those of the places that no supervisor attends, each with the name of its host.

        One query, or two if a place has no supervisor of its own. A host with a supervisor is attended, also for what
        ran there before its last boot. One whose supervisor has just ended as it should is left out for the time of a
        lease: it is being restarted. A place that no host has reported is unknown, not unattended, as during an upgrade
        from a release without hosts.
        """
        bound = set(places) - {""}
        if not bound:
            return {}
        if self.has_supervisor and not leases.is_shared_database():
            return {}  # the only host, whatever it was called before a reboot, or as a container before its restart
        own = {place for place, _ in self._living}
        asked = bound - own
        if not asked:
            return {}
        hosts = _hosts_of(asked)
        found = {}
        for place in asked:
            mine = [host for host in hosts if place in host.places]
            also = [other for other in hosts if any(other.is_new_name_of(host) for host in mine)]
            if mine and not any(host.places & own or host.has_just_ended for host in (*mine, *also)):
                found[place] = mine[-1].name
        return found


class _KnownHost:
    """A host with the places that its processes have reported."""

    def __init__(self, name: str, machine: str, first_seen_at: datetime) -> None:
        self.name, self.machine, self.first_seen_at = name, machine, first_seen_at
        self.newest = first_seen_at
        """When any process of it reported last."""
        self.places: set[str] = set()
        self.has_just_ended = False
        """Whether a supervisor of it has ended as it should within the time of a lease."""

    def is_new_name_of(self, other: _KnownHost) -> bool:
        """Whether this is the same machine under a later name. Copies of a machine have one id, but report at once."""
        return self.machine != "" and self.machine == other.machine and self.first_seen_at > other.newest


def _hosts_of(places: Iterable[str]) -> list[_KnownHost]:
    """Return the hosts that have reported any of the places, and others with the ids of their machines; one query.

    Those that reported last are at the end.
    """
    reported = HostProcess.objects.filter(place__in=places)
    named, machines = reported.values("host"), reported.exclude(host__machine="").values("host__machine")
    since = Now() - timedelta(seconds=settings.KANDEV_LEASE_TTL)
    # Not one that was killed, and whose end its host has found: nobody is restarting that.
    just_ended = Q(role=Role.SUPERVISOR, ended_at__gte=since, stopping_at__isnull=False)
    asked = HostProcess.objects.filter(Q(host__in=named) | Q(host__machine__in=machines)).order_by()
    rows = asked.values_list("host", "host__name", "host__machine", "host__first_seen_at", "place")
    hosts: dict[int, _KnownHost] = {}
    newest = rows.annotate(ended=Count("id", filter=just_ended), newest=Max("beat_at")).order_by("newest")
    for host_id, name, machine, first_seen_at, place, ended, reported_at in newest:
        host = hosts.pop(host_id, None) or _KnownHost(name, machine, first_seen_at)
        host.newest = reported_at
        hosts[host_id] = host  # at the end
        host.places.add(place)
        host.has_just_ended = host.has_just_ended or ended > 0
    return list(hosts.values())


def bound_runtimes() -> list[str]:
    """Return the runtimes whose agents only a supervisor of the same host can reach."""
    return [name for name, place in runtimes().items() if isinstance(place, BoundToHost)]


def place_of(execution: ExecutorRunning | None) -> str:
    """Return the place that an execution is bound to; empty if supervisors of any host can reach it."""
    if execution is None:
        return ""
    try:
        place = runtime(execution.runtime)
    except UnknownPlugin:
        return ""
    return execution.host_id if isinstance(place, BoundToHost) else ""


def bound_executions() -> QuerySet[ExecutorRunning]:
    """Return the executions that claim to run and that only a supervisor of their host can reach."""
    return ExecutorRunning.objects.filter(status__in=LIVE, runtime__in=bound_runtimes()).exclude(host_id="")


def sessions_by_place() -> dict[str, int]:
    """Return how many agents start or run at each place that only its own supervisor reaches."""
    return dict(bound_executions().order_by().values_list("host_id").annotate(Count("id")))


def unattended_hosts(executions: QuerySet[ExecutorRunning], *, besides: str = "") -> Mapping[str, int]:
    """Return how many of the executions are on each unattended host, by the name of the host; at most three queries.

    ``executions``: some of ``bound_executions``. ``besides``: a place that counts as attended.
    """
    if besides and not leases.is_shared_database():
        return {}  # the only host
    counts = dict(executions.order_by().values_list("host_id").annotate(Count("id")))
    counts.pop(besides, None)
    hosts: defaultdict[str, int] = defaultdict(int)
    for place, name in Supervision().name_unattended(counts).items():
        hosts[name] += counts[place]
    return dict(sorted(hosts.items()))
