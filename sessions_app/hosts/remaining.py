"""What still runs on a host: the sessions there, and what each of them waits for."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from executors_app.models import ExecutorRunning
from executors_app.wire.executions import ExecutorStatus
from sessions_app.hosts.models import Host, HostProcess
from sessions_app.hosts.rules.maintenance import RunFacts, why_running
from sessions_app.hosts.supervision import LIVE, bound_runtimes
from sessions_app.kernel.rules.states import OPEN_RUN_STATES, PermissionState
from sessions_app.models import BackgroundWork, Intent, IntentKind, PermissionRequest, Supervisor, Turn
from sessions_app.recovery.rules.resumability import UNREACHABLE

MAX_NAMED: Final = 200
"""Sessions that are named; all are counted."""


@dataclass(frozen=True, slots=True)
class RemainingSession:
    """A session that still runs on a host."""

    session_id: uuid.UUID
    task: str
    reason: str
    """What it waits for, as a sentence."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """What still runs on some hosts."""

    count: int
    sessions: Sequence[RemainingSession]
    """At most ``MAX_NAMED``."""
    is_attended: bool
    """Whether a supervisor of these hosts is alive: nobody else can stop what runs there."""


def places_of(hosts: Sequence[Host]) -> QuerySet[HostProcess, str]:
    """Select the places of hosts, as executions name them."""
    return HostProcess.objects.filter(host__in=hosts).order_by().values_list("place", flat=True)


def remaining_on(hosts: Sequence[Host]) -> Remaining:
    """Return what still runs on these hosts, the longest first; three queries."""
    places = places_of(hosts)
    rows = _running_at(places)
    named = rows.select_related("task").order_by("created_at")[:MAX_NAMED]
    sessions = [RemainingSession(row.session_id, row.task.title, why_running(_facts(row))) for row in named]
    count = len(sessions)
    if count == MAX_NAMED:
        count = rows.count()
    return Remaining(count, sessions, Supervisor.objects.alive().filter(host_id__in=places).exists())


def _running_at(places: QuerySet[HostProcess, str]) -> QuerySet[ExecutorRunning]:
    """Select what runs, may run, or is being stopped at these places."""
    intents = Intent.objects.filter(session=OuterRef("session"), done_at=None)
    turns = Turn.objects.filter(session=OuterRef("session"), state__in=OPEN_RUN_STATES, has_process=True)
    requests = PermissionRequest.objects.filter(session=OuterRef("session"), state=PermissionState.PENDING)
    background = BackgroundWork.objects.filter(session=OuterRef("session"), count__gt=0)
    here = ExecutorRunning.objects.filter(
        host_id__in=places, runtime__in=bound_runtimes(), session__agent_execution_id=F("id")
    ).annotate(
        is_stopping=Exists(intents.filter(kind__in=(IntentKind.STOP, IntentKind.CLOSE))),
        has_turn=Exists(turns),
        has_request=Exists(requests),
        has_background=Exists(background),
    )
    unreachable = Q(status=ExecutorStatus.ERROR, error_code=UNREACHABLE)
    return here.filter(Q(status__in=LIVE) | unreachable | Q(status=ExecutorStatus.STOPPED, is_stopping=True))


def _facts(row: Any) -> RunFacts:
    return RunFacts(
        is_unreachable=row.status == ExecutorStatus.ERROR,
        is_starting=row.status == ExecutorStatus.STARTING,
        is_stopping=row.is_stopping,
        has_turn=row.has_turn,
        has_request=row.has_request,
        has_background=row.has_background,
    )
