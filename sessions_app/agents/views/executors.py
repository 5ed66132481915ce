"""Pages about where and what runs: agent types and profiles, executors, and executions."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
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

from executors_app import agent_capabilities, capacity
from executors_app.agent_capabilities import CapabilityStanding
from executors_app.agents import AgentType
from executors_app.machine.process import identity
from executors_app.models import PROFILE_SECRETS, AgentCapability, AgentProfile, Executor, ExecutorRunning
from executors_app.plugins import UnknownPlugin, agent_type, agent_types, listed_agent_types, missing_programs
from executors_app.wire.errors import ExecutorError
from executors_app.wire.executions import ExecutorStatus
from sessions_app.accounts.authorization import is_isolated, writable_teams
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.accounts.teams import visible_teams
from sessions_app.agents.services.agent_setup import AgentPlace, ProgramState, agent_places
from sessions_app.agents.services.profiles import visible_profiles
from sessions_app.agents.views.agent_setup import place_label
from sessions_app.catalogue.services.executors import LIVE_STATUSES, probe_executor, visible_executions
from sessions_app.kernel.rules.wording import plural
from sessions_app.kernel.services.errors import Throttled
from sessions_app.models import Chore, Orphaned, Supervisor, TaskSession
from sessions_app.pages.labels import capability_label, execution_label
from sessions_app.pages.shortcuts import part_response
from sessions_app.recovery.services.assessment import assess_session
from sessions_app.sessions.rules.situation_facts import Label
from sessions_app.sessions.services.queries import SECRET_FIELDS
from sessions_app.sessions.views.session_summary import retry_buttons

MAX_VERSIONS_SHOWN: Final = 60
"""Capability rows on the page, the most recently seen ones."""
SEARCH_LIMIT: Final = 100
MAX_PROFILES_SHOWN: Final = 200
MAX_EXECUTORS_SHOWN: Final = 10
"""Maximum number of executors for which the page shows what each agent type lacks there."""
SUGGESTED_TYPES: Final = frozenset({"claude_code", "codex", "copilot", "gemini", "goose", "opencode"})
"""Well-known agents that are shown to somebody who has none yet; the others are folded."""
_STANDING_ORDER: Final = (
    CapabilityStanding.FAILED,
    CapabilityStanding.OBSERVED,
    CapabilityStanding.UNPROVEN,
    CapabilityStanding.NOT_TRIED,
    CapabilityStanding.NOT_SUPPORTED,
)
_RESUMES_LABEL: Final = Label("Resumes")
"""Without the tone of a success: that belongs to what was observed."""
_HISTORY_LABEL: Final = Label("Gets the history", "ask")
_NEW_CONVERSATION_LABEL: Final = Label("Starts over", "off")


@never_cache
@require_safe
def list_agents(request: UserHttpRequest) -> HttpResponse:
    """Show the agent profiles of the user's teams, and the agent types whose name contains ``?q=``."""
    return render(request, "agents/agents.html", agents_context(request.user, request.GET.get("q", "")))


def agents_context(user: User, text: str = "") -> dict[str, Any]:
    """Return profiles with their numbers of sessions, and every agent type that contains ``text``, with capabilities.

    The number of queries is constant.
    """
    seen = defaultdict(list)
    for row in agent_capabilities.list_recent_capabilities(visible_teams(user), MAX_VERSIONS_SHOWN):
        seen[row.agent_type].append(row)
    profiles = list(visible_profiles(user).select_related("team").defer(*PROFILE_SECRETS)[:MAX_PROFILES_SHOWN])
    sessions = TaskSession.objects.visible_to(user).order_by().values_list("agent_profile_id")
    used = dict(sessions.annotate(Count("id")))
    wanted = text.strip()[:SEARCH_LIMIT]
    listed = [(kind, missing) for kind, missing in listed_agent_types() if _is_named(kind, wanted)]
    places = agent_places(user, [kind for kind, _ in listed], list(Executor.objects.all()[:MAX_EXECUTORS_SHOWN]))
    kinds: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for kind, missing in listed:
        context = _agent_type_context(
            kind, missing, seen.get(kind.name, ()), [one for one in places if one.kind is kind]
        )
        (kinds if _is_within_reach(context) else others).append(context)
    # A newcomer must choose one: a few, so that the page stays short. Beside an installed agent, all are folded.
    has_agent = any(one["kind"].needs and not one["missing"] for one in kinds)
    is_newcomer = not wanted and not has_agent
    suggested = [one for one in others if is_newcomer and one["kind"].name in SUGGESTED_TYPES]
    # The newest report of each profile's program comes last.
    names = {row.profile_id: row.own_name for rows in seen.values() for row in reversed(rows)}
    gone = [row for name, rows in seen.items() if name not in agent_types() for row in rows]
    return {
        "profiles": [_profile_context(row, used.get(row.id, 0), names.get(row.id, "")) for row in profiles],
        "kinds": kinds,
        "suggested": suggested,
        "others": [one for one in others if one not in suggested],
        "unfold_others": bool(wanted),
        "gone": [_capability_context(rows) for rows in agent_capabilities.group_by_agent(gone)],
        "wanted": wanted,
        "is_staff": user.is_staff,
    }


def _profile_context(row: AgentProfile, sessions: int, own_name: str) -> dict[str, Any]:
    try:
        kind = agent_type(row.agent_type)
    except UnknownPlugin:
        return {"row": row, "title": row.agent_type, "resume": Label("Unknown type", "bad"), "sessions": sessions}
    if row.supports_session_resume is None:
        resumes = kind.supports_session_resume
    else:
        resumes = row.supports_session_resume
    if row.history_context_injection is None:
        gets_history = kind.history_context_injection
    else:
        gets_history = row.history_context_injection
    return {
        "row": row,
        "title": agent_capabilities.own_title(kind.name, own_name),
        "resume": _resume_label(resumes=resumes, gets_history=gets_history),
        "missing": [] if row.command else missing_programs(kind),
        "sessions": sessions,
    }


def _resume_label(*, resumes: bool, gets_history: bool) -> Label:
    if resumes:
        return _RESUMES_LABEL
    if gets_history:
        return _HISTORY_LABEL
    return _NEW_CONVERSATION_LABEL


def _agent_type_context(
    kind: AgentType, missing: Sequence[str], seen: Sequence[AgentCapability], places: Sequence[AgentPlace]
) -> dict[str, Any]:
    return {
        "kind": kind,
        "places": [(one.executor, place_label(one)) for one in places],
        "unchecked": [one.executor for one in places if one.program is ProgramState.UNKNOWN],
        "missing": missing,
        "resume": _resume_label(resumes=kind.supports_session_resume, gets_history=kind.history_context_injection),
        "then": _resume_summary(kind),
        "notes": f"{kind.notes} {kind.setup_notes}".strip().replace("`", ""),
        "claims": [_capability_context(rows) for rows in agent_capabilities.group_by_agent(seen)],
    }


def _is_named(kind: AgentType, text: str) -> bool:
    """Return whether the title or name of an agent type contains ``text``, in any case."""
    return text.casefold() in f"{kind.title} {kind.name}".casefold()


def _is_within_reach(context: dict[str, Any]) -> bool:
    """Return whether an agent type was seen here, or needs no installation, or is installed on some executor."""
    installed = any(label.tone == "good" for _, label in context["places"])
    return bool(context["claims"] or installed or not context["missing"])


def _resume_summary(kind: AgentType) -> str:
    """Describe in a sentence or two what a resume does for this agent type."""
    if kind.supports_session_resume:
        first = "The agent restores its own conversation"
        first += ", and Kandev compares what it replays with the log." if kind.replays_on_load else "."
        if kind.history_context_injection:
            then = "your next prompt includes the history"
        else:
            then = "you choose how to continue"
        return f"{first} If it cannot, {then}."
    if kind.history_context_injection:
        return "The agent cannot restore conversations. Your next prompt includes the history."
    return "The agent cannot restore conversations. You can open the workspace and create a new session."


def _capability_context(rows: Sequence[AgentCapability]) -> dict[str, Any]:
    """Return the capabilities of one agent, with a failure among them, or else the best that is known of one.

    What the agent itself reported is shown only to staff, in the admin.
    """
    standings = [agent_capabilities.capability_standing(row) for row in rows]
    return {
        "row": max(rows, key=lambda row: row.last_seen_at),
        "text": agent_capabilities.explain_capabilities(rows),
        "word": capability_label(min(standings, key=_STANDING_ORDER.index)),
    }


MAX_EXECUTIONS_SHOWN: Final = 100
"""Executions on the page; the others are only counted."""
_DEFERRED_FIELDS: Final = tuple(f"session__{name}" for name in SECRET_FIELDS)
_COUNTED_STATUSES: Final = ("alive", "dead", "unknown")


@never_cache
@require_safe
def list_executors(request: UserHttpRequest) -> HttpResponse:
    """Show the executors, and the executions of the user's teams."""
    return render(request, "agents/executors.html", executors_context(request.user))


@require_POST
def probe_and_redirect(request: UserHttpRequest, executor_id: uuid.UUID) -> HttpResponse:
    """Check now whether an executor is available, and report the result as a message; for staff only."""
    if not request.user.is_staff:
        raise PermissionDenied
    place = get_object_or_404(Executor, id=executor_id)
    try:
        told = probe_executor(place, request.user)
    except Throttled as error:
        messages.error(request, error.message)
    except ExecutorError as error:
        messages.error(request, f"{place.name} is not available: {error.message}")
    else:
        messages.success(
            request, f"{place.name} is available. {_probe_result_text(told)} The check took {told['duration_ms']} ms."
        )
    return redirect("executors")


def _probe_result_text(told: Mapping[str, Any]) -> str:
    counts = [f"{told['observed'][kind]} {kind}" for kind in _COUNTED_STATUSES if told["observed"].get(kind)]
    if counts:
        return f"Agents that should be running there: {', '.join(counts)}."
    return "No agent should be running there."


def executors_context(user: User) -> dict[str, Any]:
    """Return the executors with their numbers of executions (of all teams), and the executions of the user's teams."""
    running = visible_executions(user).filter(status__in=LIVE_STATUSES).order_by("-last_seen_at", "id")
    rows = running.select_related(
        "session__task__repository", "session__agent_profile", "session__executor", "executor"
    )
    writable = set(writable_teams(user).values_list("id", flat=True))
    holders = _LeaseHolders()
    # The executors that the last search for orphans could not reach, with the reasons.
    if user.is_staff:
        failed = Chore.objects.filter(name="orphans", failed_at__isnull=False).first()
    else:
        failed = None
    executions = [
        _execution_context(row, writable, holders) for row in rows.defer(*_DEFERRED_FIELDS)[:MAX_EXECUTIONS_SHOWN]
    ]
    return {
        "places": _executor_contexts(),
        "executions": executions,
        "count": running.count(),
        "shown": len(executions),
        "supervisors": holders.told(),
        "is_staff": user.is_staff,
        "orphans": list(Orphaned.objects.all()[:MAX_EXECUTIONS_SHOWN]) if user.is_staff else [],
        "not_asked": list(failed.said) if failed else [],
    }


class _LeaseHolders:
    """The live supervisors by boot id, read once; describes who holds the lease of an execution."""

    def __init__(self) -> None:
        self._alive = {row.boot_id: row for row in Supervisor.objects.alive()}
        self._here = identity.host_id()

    @property
    def has_swept(self) -> bool:
        """Whether one of them has completed a sweep since it started."""
        return any(row.swept_at for row in self._alive.values())

    def told(self) -> list[dict[str, Any]]:
        """Return the live supervisors for the page."""
        return [{"row": row, "name": row.boot_id[:8], "host": self.host(row.host_id)} for row in self._alive.values()]

    def host(self, host_id: str) -> str:
        """Return the machine with this id in words; empty without an id, as for a runtime that is not local."""
        if not host_id:
            return ""
        if host_id == self._here:
            return "this machine"
        return f"another machine ({host_id[:8]})"

    def lease(self, row: ExecutorRunning) -> dict[str, Any]:
        """Return who holds the lease of an execution, and until when."""
        if not row.owner:
            return {"text": "not held", "until": None, "tone": "off"}
        ends, alive = row.lease_expires_at, row.owner in self._alive
        over = ends is None or ends < timezone.now()
        who = f"supervisor {row.owner[:8]}" + ("" if alive else " (no longer running)")
        return {"text": f"held by {who}", "until": ends, "over": over, "tone": "ask" if over or not alive else ""}


def _executor_contexts() -> list[dict[str, Any]]:
    live = Q(executions__status__in=capacity.LIVE_STATUSES)
    failed = Q(executions__status=ExecutorStatus.ERROR)
    rows = Executor.objects.annotate(
        live=Count("executions", filter=live),
        agents=Count("executions", filter=live & Q(executions__session__has_agent=True)),
        failed=Count("executions", filter=failed),
        seen=Max("executions__last_seen_at", filter=live),
    )
    sharing = [row for row in rows if capacity.shares_machine_limit(row)]
    contexts = []
    for row in rows:
        limit = capacity.agent_limit(row)
        used = sum(one.agents for one in sharing) if row in sharing else row.agents
        contexts.append(
            {
                "executor": row,
                "isolated": is_isolated(row),
                "limit": limit,
                "used": used,
                "full": limit is not None and used >= limit,
                "room": _describe_room(row.live, row.agents, limit, shared_by=len(sharing) if row in sharing else 0),
            }
        )
    return contexts


def _describe_room(live: int, agents: int, limit: int | None, shared_by: int) -> str:
    """Return how many sessions are live on an executor, and how many of their agents may be.

    ``shared_by`` executors use this machine's memory. Sessions without an agent do not count for the limit.
    """
    sessions = plural(live, "1 live session", "{} live sessions")
    if live > agents:
        sessions += f" ({live - agents} without an agent)"
    if limit is None:
        return f"{sessions}, no limit"
    if not shared_by:
        return f"{sessions} of at most {limit}"
    if shared_by == 1:
        return f"{sessions} of at most {limit}, as this machine has memory for"
    return f"{sessions}; at most {limit} on all executors of this machine together, as it has memory for"


def _execution_context(row: ExecutorRunning, writable: Collection[int], holders: _LeaseHolders) -> dict[str, Any]:
    may_retry = row.status == ExecutorStatus.ERROR and row.session.task.team_id in writable
    return {
        "execution": row,
        "session": row.session,
        "word": execution_label(
            row.status, row.status_reason, error_code=row.error_code, recovering=not holders.has_swept
        ),
        "host": holders.host(row.host_id),
        "lease": holders.lease(row),
        "retry": retry_buttons(row, assess_session(row.session)) if may_retry else None,
    }


@never_cache
@require_GET
def executor_updates(request: UserHttpRequest) -> JsonResponse:
    """Return the current executors and executions."""
    return part_response("executors", "agents/executors_list.html", executors_context(request.user))
