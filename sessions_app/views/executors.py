"""Where agents run, and what runs there now."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from typing import Any, Final

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Max, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from executors_app.agentctl import identity
from executors_app.domain import ExecutorStatus
from executors_app.errors import ExecutorError
from executors_app.models import Executor, ExecutorRunning
from executors_app.plugins import UnknownPlugin
from sessions_app.models import Chore, Orphaned, Supervisor
from sessions_app.services.assessment import assess_session
from sessions_app.services.catalogue import LIVE, SECRETS, probe, visible_executions
from sessions_app.services.errors import Throttled
from sessions_app.services.rights import writable_teams
from sessions_app.views.banners import retry_of
from sessions_app.views.wording import executor_word

SHOWN: Final = 100
"""Executions on the page; the rest is counted."""
_SECRETS: Final = tuple(f"session__{name}" for name in SECRETS)
_COUNTED: Final = (("alive", "alive"), ("dead", "dead"), ("unknown", "not to be told"))


@never_cache
@require_safe
def executors(request: HttpRequest) -> HttpResponse:
    """Show the places and the executions of the user's teams."""
    return render(request, "executors.html", executors_context(request.user))


@require_POST
def look_at(request: HttpRequest, executor_id: uuid.UUID) -> HttpResponse:
    """Look at a place now, for staff; the answer is told in words."""
    if not request.user.is_staff:
        raise PermissionDenied
    place = get_object_or_404(Executor, id=executor_id)
    try:
        told = probe(place, request.user)
    except Throttled as error:
        messages.error(request, error.message)
    except ExecutorError as error:
        messages.error(request, f"{place.name} cannot be used now: {error.message}")
    else:
        messages.success(request, f"{place.name} can be used. {_seen(told)} The look took {told['duration_ms']} ms.")
    return redirect("executors")


def _seen(told: Mapping[str, Any]) -> str:
    counts = [f"{told['observed'][kind]} {word}" for kind, word in _COUNTED if told["observed"].get(kind)]
    return f"Of what claims to run there: {', '.join(counts)}." if counts else "Nothing claims to run there."


def executors_context(user: Any) -> dict[str, Any]:
    """The places with how many live there (everybody's), and what runs of the user's own teams."""
    running = visible_executions(user).filter(status__in=LIVE).order_by("-last_seen_at", "id")
    rows = running.select_related(
        "session__task__repository", "session__agent_profile", "session__executor", "executor"
    )
    writable = set(writable_teams(user).values_list("id", flat=True))
    holders = _Holders()
    executions = [_execution(row, writable, holders) for row in rows.defer(*_SECRETS)[:SHOWN]]
    return {
        "places": _places(),
        "executions": executions,
        "count": running.count(),
        "shown": len(executions),
        "supervisors": holders.told(),
        "is_staff": user.is_staff,
        "orphans": list(Orphaned.objects.all()[:SHOWN]) if user.is_staff else [],
        "not_asked": _not_asked() if user.is_staff else [],
    }


def _not_asked() -> list[str]:
    """Which executors the last look for orphans could not ask, and why."""
    failed = Chore.objects.filter(name="orphans", failed_at__isnull=False).first()
    return list(failed.said) if failed else []


class _Holders:
    """Who holds leases: the supervisors that are known, by their boot id; read once."""

    def __init__(self) -> None:
        self._alive = {row.boot_id: row for row in Supervisor.objects.alive()}
        self._here = identity.host_id()

    @property
    def has_looked(self) -> bool:
        """Whether one of them has looked at everything since it was started."""
        return any(row.swept_at for row in self._alive.values())

    def told(self) -> list[dict[str, Any]]:
        """The living supervisors, newest first."""
        return [{"row": row, "name": row.boot_id[:8], "host": self.host(row.host_id)} for row in self._alive.values()]

    def host(self, host_id: str) -> str:
        """Where something local lives, in words; empty where that says nothing."""
        if not host_id:
            return ""
        return "this machine" if host_id == self._here else f"another machine ({host_id[:8]})"

    def lease(self, row: ExecutorRunning) -> dict[str, Any]:
        """Who commands an execution, and until when."""
        if not row.owner:
            return {"text": "nobody commands it", "until": None, "tone": "off"}
        ends, alive = row.lease_expires_at, row.owner in self._alive
        over = ends is None or ends < timezone.now()
        who = f"supervisor {row.owner[:8]}" + ("" if alive else ", which is gone")
        return {"text": f"held by {who}", "until": ends, "over": over, "tone": "ask" if over or not alive else ""}


def _places() -> list[dict[str, Any]]:
    live = Q(executions__status__in=[ExecutorStatus.STARTING, ExecutorStatus.READY])
    failed = Q(executions__status=ExecutorStatus.ERROR)
    rows = Executor.objects.annotate(
        live=Count("executions", filter=live),
        failed=Count("executions", filter=failed),
        seen=Max("executions__last_seen_at", filter=live),
    )
    return [{"executor": row, "isolated": _is_isolated(row), "full": _is_full(row)} for row in rows]


def _is_full(executor: Any) -> bool:
    return executor.max_live is not None and executor.live >= executor.max_live


def _is_isolated(executor: Executor) -> bool:
    try:
        return not executor.trusted_agents_only
    except UnknownPlugin:
        return False


def _execution(row: ExecutorRunning, writable: Collection[int], holders: _Holders) -> dict[str, Any]:
    may_retry = row.status == ExecutorStatus.ERROR and row.session.task.team_id in writable
    return {
        "execution": row,
        "session": row.session,
        "word": executor_word(
            row.status, row.status_reason, error_code=row.error_code, recovering=not holders.has_looked
        ),
        "host": holders.host(row.host_id),
        "lease": holders.lease(row),
        "retry": retry_of(row, assess_session(row.session)) if may_retry else None,
    }
