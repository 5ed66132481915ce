"""What a deploy broke: ``recover_sessions --strict`` compares the sessions now with those before the deploy."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db.models import QuerySet

from executors_app.agentctl import identity
from sessions_app.domain.soundness import DAMAGED_ROW
from sessions_app.domain.states import DesiredState, SessionState, TaskState
from sessions_app.models import SessionEvent, Supervisor, SweepOutcome, TaskSession
from sessions_app.supervisor import leases
from sessions_app.supervisor.sweep.one_pass import Scope, Sweep

_LEVELS: Final[Mapping[str, int]] = {SessionState.ERROR: 1, SessionState.FAILED: 2}
"""How bad a state is. ERROR may pass or be tried again; FAILED was given up. Every other state is fine."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A session that should run and does not."""

    session_id: uuid.UUID
    state: str
    message: str
    by_deploy: bool
    """It was better before the deploy."""


def live_supervisors() -> list[Supervisor]:
    """Supervisors that are alive, newest first, those of this machine before all others.

    A killed one has a fresh heartbeat for a while; where its process can be seen to be gone it does not count.
    """
    alive = [row for row in Supervisor.objects.alive().order_by("-started_at") if not leases.is_dead(row.boot_id)]
    return sorted(alive, key=lambda row: row.host_id != identity.host_id())


def broken_since(began: datetime, result: Sweep) -> list[Broken]:
    """Sessions in the scope of ``result`` that should run and are in ERROR, given up or damaged.

    ``began`` is when the deploy began. The state before it is known from the log, and from earlier sweeps.
    """
    damaged = {one.session_id: one.said for one in result.damaged}
    rows = [row for row in _in_trouble(result.scope).filter(created_at__lt=began) if row.id not in damaged]
    before = _levels_before([row.id for row in rows], began)
    known = _damaged_before(damaged, began)
    troubled = [
        Broken(
            row.id, row.state, row.error_message, by_deploy=before.get(row.id, _LEVELS[row.state]) < _LEVELS[row.state]
        )
        for row in rows
    ]
    return [*troubled, *(Broken(key, DAMAGED_ROW, said, by_deploy=key not in known) for key, said in damaged.items())]


def _in_trouble(scope: Scope) -> QuerySet[TaskSession]:
    rows = TaskSession.objects.filter(state__in=_LEVELS, desired_state=DesiredState.RUNNING, task__archived_at=None)
    rows = rows.exclude(task__state__in=(TaskState.DONE, TaskState.CANCELLED))
    if scope.sessions:
        rows = rows.filter(id__in=scope.sessions)
    if scope.runtime:
        rows = rows.filter(executor__runtime=scope.runtime)
    return rows.order_by("id").only("state", "error_message")


def _levels_before(sessions: Collection[uuid.UUID], began: datetime) -> dict[uuid.UUID, int]:
    """How bad the state of each was at ``began``; left out is whose state has not changed since."""
    changes = SessionEvent.objects.filter(session_id__in=sessions, name="session.state_changed", at__gte=began)
    levels: dict[uuid.UUID, int] = {}
    for session_id, payload in changes.order_by("seq").values_list("session_id", "payload"):
        levels.setdefault(session_id, _LEVELS.get(payload.get("from", ""), 0))
    return levels


def _damaged_before(sessions: Collection[uuid.UUID], began: datetime) -> set[uuid.UUID]:
    """Those that the last sweep before ``began`` had to pass over already."""
    told = SweepOutcome.objects.filter(session_id__in=sessions, sweep__started_at__lt=began)
    newest = dict(told.order_by("sweep__started_at").values_list("session_id", "rule"))
    return {session_id for session_id, rule in newest.items() if rule == DAMAGED_ROW}
