"""The agents: what each kind claims of resuming, what it was seen to keep, and what the teams' profiles run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from executors_app import capability_memory
from executors_app.agents import AgentType
from executors_app.models import AgentCapability, AgentProfile
from executors_app.plugins import UnknownPlugin, agent_type, agent_types
from sessions_app.models import TaskSession
from sessions_app.services.catalogue import missing_programs, visible_profiles
from sessions_app.views.wording import Word, capability_word

SEEN_SHOWN: Final = 60
"""Claims of agents on the page, those that were seen last."""
PROFILES_SHOWN: Final = 200
_RESUMES: Final = Word("Resumes", "good")
_TOLD: Final = Word("Is told what was said", "ask")
_NEW: Final = Word("Begins anew", "off")


@never_cache
@require_safe
def agents(request: HttpRequest) -> HttpResponse:
    """Show the profiles of the user's teams and the kinds of agents."""
    return render(request, "agents.html", agents_context(request.user))


def agents_context(user: Any) -> dict[str, Any]:
    """The profiles with how much they are used, and every kind with its claims; a constant number of queries."""
    seen = defaultdict(list)
    for row in capability_memory.lately_seen(SEEN_SHOWN):
        seen[row.agent_type].append(row)
    profiles = list(visible_profiles(user).select_related("team").defer("env", "mcp_servers")[:PROFILES_SHOWN])
    used = _used(user)
    kinds = sorted(agent_types().values(), key=lambda kind: (not seen.get(kind.name), kind.title))
    gone = [row for name, rows in seen.items() if name not in agent_types() for row in rows]
    return {
        "profiles": [_profile(row, used.get(row.id, 0)) for row in profiles],
        "kinds": [_kind(kind, seen.get(kind.name, ())) for kind in kinds],
        "gone": [_claim(row) for row in gone],
        "is_staff": user.is_staff,
    }


def _used(user: Any) -> dict[Any, int]:
    rows = TaskSession.objects.visible_to(user).order_by().values_list("agent_profile_id")
    return dict(rows.annotate(Count("id")))


def _profile(row: AgentProfile, sessions: int) -> dict[str, Any]:
    try:
        kind = agent_type(row.agent_type)
    except UnknownPlugin:
        return {"row": row, "title": row.agent_type, "resume": Word("Unknown kind", "bad"), "sessions": sessions}
    resumes = kind.supports_session_resume if row.supports_session_resume is None else row.supports_session_resume
    told = kind.history_context_injection if row.history_context_injection is None else row.history_context_injection
    return {
        "row": row,
        "title": kind.title,
        "resume": _resume(resumes=resumes, told=told),
        "missing": [] if row.command else missing_programs(kind),
        "sessions": sessions,
    }


def _resume(*, resumes: bool, told: bool) -> Word:
    return _RESUMES if resumes else _TOLD if told else _NEW


def _kind(kind: AgentType, seen: Sequence[AgentCapability]) -> dict[str, Any]:
    return {
        "kind": kind,
        "missing": missing_programs(kind),
        "resume": _resume(resumes=kind.supports_session_resume, told=kind.history_context_injection),
        "then": _then(kind),
        "notes": kind.notes.replace("`", ""),
        "claims": [_claim(row) for row in seen],
    }


def _then(kind: AgentType) -> str:
    """What a resume means for this kind, in a sentence or two."""
    if kind.supports_session_resume:
        first = "It opens its own conversation"
        first += ", and what it reads out is compared with the log." if kind.replays_on_load else "."
        then = "the next prompt tells it what was said" if kind.history_context_injection else "you are asked first"
        return f"{first} Where it cannot, {then}."
    if kind.history_context_injection:
        return "It keeps no conversation. A new one is told what was said, with the next prompt."
    return "It keeps no conversation: its workspace is opened, and you make a new session."


def _claim(row: AgentCapability) -> dict[str, Any]:
    """A claim with how it stands; the agent's own words are for staff, in the admin."""
    return {
        "row": row,
        "text": capability_memory.explain(row),
        "word": capability_word(capability_memory.standing(row)),
    }
