"""Where agents run, and what runs there now."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from executors_app import capability_memory
from executors_app.domain import ExecutorStatus
from executors_app.models import Executor, ExecutorRunning
from executors_app.plugins import UnknownPlugin
from sessions_app.services.assessment import assess_session
from sessions_app.services.catalogue import LIVE, SECRETS, visible_executions
from sessions_app.services.rights import writable_teams
from sessions_app.views.banners import retry_of
from sessions_app.views.wording import capability_word, executor_word

SHOWN: Final = 100
"""Executions on the page; the rest is counted."""
AGENTS_SHOWN: Final = 60
"""Claims of agents on the page, those that were seen last."""
_SECRETS: Final = tuple(f"session__{name}" for name in SECRETS)


@never_cache
@require_safe
def executors(request: HttpRequest) -> HttpResponse:
    """Show the places and the executions of the user's teams."""
    return render(request, "executors.html", executors_context(request.user))


def executors_context(user: Any) -> dict[str, Any]:
    """The places with how many live there (everybody's), and what runs of the user's own teams."""
    running = visible_executions(user).filter(status__in=LIVE).order_by("-last_seen_at", "id")
    rows = running.select_related(
        "session__task__repository", "session__agent_profile", "session__executor", "executor"
    )
    writable = set(writable_teams(user).values_list("id", flat=True))
    executions = [_execution(row, writable) for row in rows.defer(*_SECRETS)[:SHOWN]]
    return {
        "places": _places(),
        "executions": executions,
        "count": running.count(),
        "shown": len(executions),
        "claims": _claims(),
    }


def _claims() -> list[dict[str, Any]]:
    """What agents claim of resuming, and how that stands; their own words are for staff."""
    return [
        {"row": row, "text": capability_memory.explain(row), "word": capability_word(capability_memory.standing(row))}
        for row in capability_memory.lately_seen(AGENTS_SHOWN)
    ]


def _places() -> list[dict[str, Any]]:
    live = Q(executions__status__in=[ExecutorStatus.STARTING, ExecutorStatus.READY])
    rows = Executor.objects.annotate(live=Count("executions", filter=live))
    return [{"executor": row, "isolated": _is_isolated(row)} for row in rows]


def _is_isolated(executor: Executor) -> bool:
    try:
        return not executor.trusted_agents_only
    except UnknownPlugin:
        return False


def _execution(row: ExecutorRunning, writable: Collection[int]) -> dict[str, Any]:
    may_retry = row.status == ExecutorStatus.ERROR and row.session.task.team_id in writable
    return {
        "execution": row,
        "session": row.session,
        "word": executor_word(row.status, row.status_reason),
        "retry": retry_of(row, assess_session(row.session)) if may_retry else None,
    }
