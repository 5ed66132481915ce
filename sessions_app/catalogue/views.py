"""The page of executors: where agents run, what runs there now, and which supervisors look after it."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Max, Q
from django.http import HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST, require_safe

from executors_app import capacity
from executors_app.machine.process import identity
from executors_app.models import Executor, ExecutorRunning
from executors_app.wire.errors import ExecutorError
from executors_app.wire.executions import ExecutorStatus
from executors_app.wire.runtime_names import runtime_name
from sessions_app.accounts.authorization import is_isolated, writable_teams
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.catalogue.services.executors import UNFINISHED_STATUSES, probe_executor, visible_executions
from sessions_app.hosts.services import names_of_places
from sessions_app.hosts.supervision import Supervision, place_of
from sessions_app.kernel.rules.wording import plural
from sessions_app.kernel.services.errors import Throttled
from sessions_app.models import Chore, Orphaned, Supervisor, TaskSession
from sessions_app.pages.labels import execution_label, isolation_label
from sessions_app.pages.shortcuts import part_response
from sessions_app.recovery.services.assessment import assess_session
from sessions_app.sessions.rules.situation_facts import Label
from sessions_app.sessions.services.queries import SECRET_FIELDS
from sessions_app.sessions.views.session_summary import BannerButton, retry_buttons

MAX_EXECUTIONS_SHOWN: Final = 100
"""Executions on the page; the others are only counted."""
_DEFERRED_FIELDS: Final = tuple(f"session__{name}" for name in SECRET_FIELDS)
_OBSERVED_ORDER: Final = ("alive", "dead", "unknown")


@never_cache
@require_safe
def list_executors(request: UserHttpRequest) -> HttpResponse:
    """Show the executors, and the executions of the user's teams."""
    return render(request, "catalogue/executors.html", executors_context(request.user))


@never_cache
@require_GET
def executor_updates(request: UserHttpRequest) -> JsonResponse:
    """Return the current executors and executions."""
    return part_response("executors", "catalogue/executors_list.html", executors_context(request.user))


@require_POST
def probe_and_redirect(request: UserHttpRequest, executor_id: uuid.UUID) -> HttpResponse:
    """Check now whether an executor is available, and report the result as a message; for staff only."""
    if not request.user.is_staff:
        raise PermissionDenied
    executor = get_object_or_404(Executor, id=executor_id)
    try:
        probe = probe_executor(executor, request.user)
    except Throttled as error:
        messages.error(request, error.message)
    except ExecutorError as error:
        messages.error(request, f"{executor.name} is not available: {error.message}")
    else:
        messages.success(request, describe_probe(executor, probe))
    return redirect("executors")


def describe_probe(executor: Executor, probe: Mapping[str, Any]) -> str:
    """Return what a probe has found."""
    agents = _describe_observed(probe["observed"])
    return f"{executor.name} is available. {agents} The check took {probe['duration_ms']} ms."


def _describe_observed(observed: Mapping[str, int]) -> str:
    """Return how many agents a probe found alive, dead or in an unknown state."""
    counts = [f"{observed[name]} {name}" for name in _OBSERVED_ORDER if observed.get(name)]
    if not counts:
        return "No agent should be running there."
    return f"Agents that should be running there: {', '.join(counts)}."


def executors_context(user: User) -> dict[str, Any]:
    """Return the executors with their numbers of executions (of all teams), and the executions of the user's teams."""
    supervisors = LiveSupervisors()
    unfinished = visible_executions(user).filter(status__in=UNFINISHED_STATUSES).order_by("-last_seen_at", "id")
    executions = _execution_cards(unfinished, user, supervisors)
    context = {
        "executors": _executor_cards(),
        "executions": executions,
        "count": unfinished.count(),
        "shown": len(executions),
        "supervisors": supervisors.cards(),
        "is_staff": user.is_staff,
    }
    if user.is_staff:
        context["orphans"] = [
            (orphan, runtime_name(orphan.runtime)) for orphan in Orphaned.objects.all()[:MAX_EXECUTIONS_SHOWN]
        ]
        context["unreachable"] = _unreachable_executors()
    return context


def _unreachable_executors() -> Sequence[str]:
    """Return why the last search for orphans could not reach some executors, a sentence for each."""
    failed = Chore.objects.filter(name="orphans", failed_at__isnull=False).first()
    if failed is None:
        return []
    return list(failed.said)


@dataclass(frozen=True, slots=True)
class SupervisorCard:
    """A live supervisor on the page."""

    row: Supervisor
    host: str
    """Its machine in words."""

    @property
    def name(self) -> str:
        """The beginning of its boot id."""
        return self.row.boot_id[:8]


@dataclass(frozen=True, slots=True)
class Lease:
    """Who holds the lease of an execution."""

    text: str
    until: datetime | None = None
    is_over: bool = False
    tone: str = ""
    """How it is marked, as a label; empty: plain text."""


class LiveSupervisors:
    """The live supervisors by boot id, read once; describes who holds the lease of an execution."""

    def __init__(self) -> None:
        self._by_boot = {row.boot_id: row for row in Supervisor.objects.alive()}
        self._this_machine = identity.host_id()
        self._names = names_of_places()

    @property
    def has_swept(self) -> bool:
        """Whether one of them has completed a sweep since it started."""
        return any(row.swept_at for row in self._by_boot.values())

    def cards(self) -> list[SupervisorCard]:
        """Return them for the page."""
        return [SupervisorCard(row, self.host(row.host_id)) for row in self._by_boot.values()]

    def host(self, host_id: str) -> str:
        """Return the machine with this id in words; empty without an id, as for a runtime that is not local."""
        if not host_id:
            return ""
        if host_id == self._this_machine:
            return "this machine"
        return self._names.get(host_id, f"another machine ({host_id[:8]})")

    def lease(self, execution: ExecutorRunning) -> Lease:
        """Return who holds the lease of an execution, and until when."""
        if not execution.owner:
            return Lease("not held", tone="off")
        text = f"held by supervisor {execution.owner[:8]}"
        is_alive = execution.owner in self._by_boot
        if not is_alive:
            text += " (no longer running)"
        until = execution.lease_expires_at
        is_over = until is None or until < timezone.now()
        if is_over or not is_alive:
            return Lease(text, until, is_over, tone="ask")
        return Lease(text, until, is_over)


@dataclass(frozen=True, slots=True)
class ExecutorCard:
    """An executor on the page, annotated with the numbers of its executions."""

    executor: Any
    limit: int | None
    """How many agents may be live; None: any number."""
    used: int
    """How many are: with a limit of the machine's memory, on all executors that share it."""
    shared_by: int
    """How many executors share the limit of this machine's memory; 0: the limit is the executor's own."""

    @property
    def runtime(self) -> str:
        """Where its agents run, in words."""
        return runtime_name(self.executor.runtime)

    @property
    def isolation(self) -> Label:
        """Whether its agents are isolated from Kandev."""
        return isolation_label(self.executor.runtime, is_isolated=is_isolated(self.executor))

    @property
    def is_full(self) -> bool:
        """Whether no further agent can start."""
        return self.limit is not None and self.used >= self.limit

    @property
    def room(self) -> str:
        """How many sessions are live, and how many of their agents may be.

        Sessions without an agent do not count for the limit.
        """
        live, without_agent = self.executor.live, self.executor.live - self.executor.agents
        sessions = plural(live, "1 live session", "{} live sessions")
        if without_agent > 0:
            sessions += f" ({without_agent} without an agent)"
        if self.limit is None:
            return f"{sessions}, no limit"
        if not self.shared_by:
            return f"{sessions} of at most {self.limit}"
        if self.shared_by == 1:
            return f"{sessions} of at most {self.limit}, as this machine has memory for"
        return f"{sessions}; at most {self.limit} on all executors of this machine together, as it has memory for"


def _executor_cards() -> list[ExecutorCard]:
    live = Q(executions__status__in=capacity.LIVE_STATUSES)
    executors = Executor.objects.annotate(
        live=Count("executions", filter=live),
        agents=Count("executions", filter=live & Q(executions__session__has_agent=True)),
        failed=Count("executions", filter=Q(executions__status=ExecutorStatus.ERROR)),
        seen=Max("executions__last_seen_at", filter=live),
    )
    sharing = [executor for executor in executors if capacity.shares_machine_limit(executor)]
    shared_agents = sum(executor.agents for executor in sharing)
    cards = []
    for executor in executors:
        limit = capacity.agent_limit(executor)
        if executor in sharing:
            cards.append(ExecutorCard(executor, limit, used=shared_agents, shared_by=len(sharing)))
        else:
            cards.append(ExecutorCard(executor, limit, used=executor.agents, shared_by=0))
    return cards


@dataclass(frozen=True, slots=True)
class ExecutionCard:
    """An execution on the page."""

    execution: ExecutorRunning
    label: Label
    host: str
    lease: Lease
    retry: BannerButton | None
    """The button that starts it again, if it failed and the user may."""

    @property
    def session(self) -> TaskSession:
        """Its session."""
        return self.execution.session

    @property
    def runtime(self) -> str:
        """Where it runs, in words."""
        return runtime_name(self.execution.runtime)


def _execution_cards(unfinished: Any, user: User, supervisors: LiveSupervisors) -> list[ExecutionCard]:
    rows = unfinished.select_related(
        "session__task__repository", "session__agent_profile", "session__executor", "executor"
    )
    writable = set(writable_teams(user).values_list("id", flat=True))
    shown = list(rows.defer(*_DEFERRED_FIELDS)[:MAX_EXECUTIONS_SHOWN])
    unattended = Supervision().name_unattended(map(place_of, shown))
    return [_execution_card(execution, writable, supervisors, unattended) for execution in shown]


def _execution_card(
    execution: ExecutorRunning, writable: Collection[int], supervisors: LiveSupervisors, unattended: Collection[str]
) -> ExecutionCard:
    label = execution_label(
        execution.status,
        execution.status_reason,
        error_code=execution.error_code,
        recovering=not supervisors.has_swept,
        unattended=place_of(execution) in unattended,
    )
    retry = None
    if execution.status == ExecutorStatus.ERROR and execution.session.task.team_id in writable:
        retry = retry_buttons(execution, assess_session(execution.session))
    return ExecutionCard(execution, label, supervisors.host(execution.host_id), supervisors.lease(execution), retry)
