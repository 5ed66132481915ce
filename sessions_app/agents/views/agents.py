"""The page of agents: the profiles of the user's teams, what each agent type supports, and what was observed of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from django.contrib.auth.models import User
from django.db.models import Count
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from executors_app import agent_capabilities
from executors_app.agent_capabilities import CapabilityStanding
from executors_app.agents import AgentType
from executors_app.models import PROFILE_SECRETS, AgentCapability, AgentProfile, Executor
from executors_app.plugins import UnknownPlugin, agent_type, agent_types, listed_agent_types, missing_programs
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.accounts.teams import visible_teams
from sessions_app.agents.services.agent_setup import AgentPlace, ProgramState, agent_places
from sessions_app.agents.services.profiles import visible_profiles
from sessions_app.agents.views.agent_setup import place_label
from sessions_app.models import TaskSession
from sessions_app.pages.labels import capability_label
from sessions_app.sessions.rules.situation_facts import Label

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
_UNKNOWN_TYPE_LABEL: Final = Label("Unknown type", "bad")

CapabilitiesByType: TypeAlias = Mapping[str, Sequence[AgentCapability]]
"""The capabilities that were observed in the user's teams, newest first, by the name of the agent type."""


@never_cache
@require_safe
def list_agents(request: UserHttpRequest) -> HttpResponse:
    """Show the agent profiles of the user's teams, and the agent types whose name contains ``?q=``."""
    return render(request, "agents/agents.html", agents_context(request.user, request.GET.get("q", "")))


def agents_context(user: User, text: str = "") -> dict[str, Any]:
    """Return profiles with their numbers of sessions, and every agent type that contains ``text``, with capabilities.

    The number of queries is constant.
    """
    search = text.strip()[:SEARCH_LIMIT]
    observed = _observed_capabilities(user)
    profiles = _profile_cards(user, observed)
    within_reach: list[AgentTypeCard] = []
    not_installed: list[AgentTypeCard] = []
    for card in _agent_type_cards(user, search, observed):
        if card.is_within_reach:
            within_reach.append(card)
        else:
            not_installed.append(card)
    suggested: list[AgentTypeCard] = []
    # A newcomer must choose one: a few, so that the page stays short. Beside an installed agent, all are folded.
    if not search and not any(card.is_installed_here for card in within_reach):
        suggested = [card for card in not_installed if card.kind.name in SUGGESTED_TYPES]
    return {
        "profiles": profiles,
        "kinds": within_reach,
        "suggested": suggested,
        "others": [card for card in not_installed if card not in suggested],
        "unfold_others": bool(search),
        "removed_types": _capabilities_of_removed_types(observed),
        "search": search,
        "is_staff": user.is_staff,
    }


def _observed_capabilities(user: User) -> CapabilitiesByType:
    by_type: defaultdict[str, list[AgentCapability]] = defaultdict(list)
    for row in agent_capabilities.list_recent_capabilities(visible_teams(user), MAX_VERSIONS_SHOWN):
        by_type[row.agent_type].append(row)
    return by_type


@dataclass(frozen=True, slots=True)
class ProfileCard:
    """An agent profile on the page."""

    row: AgentProfile
    title: str
    resume: Label
    sessions: int
    """How many sessions of the user's teams have it."""
    missing: Sequence[str] = ()
    """Programs that are not installed on this machine."""


def _profile_cards(user: User, observed: CapabilitiesByType) -> list[ProfileCard]:
    profiles = list(visible_profiles(user).select_related("team").defer(*PROFILE_SECRETS)[:MAX_PROFILES_SHOWN])
    sessions = TaskSession.objects.visible_to(user).order_by().values_list("agent_profile_id")
    counts = dict(sessions.annotate(Count("id")))
    own_names: dict[Any, str] = {}
    for rows in observed.values():
        for row in reversed(rows):  # so that the newest report of each profile's program is kept
            own_names[row.profile_id] = row.own_name
    return [_profile_card(row, counts.get(row.id, 0), own_names.get(row.id, "")) for row in profiles]


def _profile_card(profile: AgentProfile, sessions: int, own_name: str) -> ProfileCard:
    try:
        kind = agent_type(profile.agent_type)
    except UnknownPlugin:
        return ProfileCard(profile, profile.agent_type, _UNKNOWN_TYPE_LABEL, sessions)
    resumes = profile.supports_session_resume
    if resumes is None:
        resumes = kind.supports_session_resume
    gets_history = profile.history_context_injection
    if gets_history is None:
        gets_history = kind.history_context_injection
    missing: Sequence[str] = ()
    if not profile.command:
        missing = missing_programs(kind)
    return ProfileCard(
        row=profile,
        title=agent_capabilities.own_title(kind.name, own_name),
        resume=_resume_label(resumes=resumes, gets_history=gets_history),
        sessions=sessions,
        missing=missing,
    )


def _resume_label(*, resumes: bool, gets_history: bool) -> Label:
    if resumes:
        return _RESUMES_LABEL
    if gets_history:
        return _HISTORY_LABEL
    return _NEW_CONVERSATION_LABEL


@dataclass(frozen=True, slots=True)
class CapabilityCard:
    """What was observed of the versions of one agent; the errors that it reported are shown to staff, in the admin."""

    row: AgentCapability
    """The one that was seen last."""
    text: str
    label: Label
    """A failure if there was one, or else the best that is known."""


def _capability_card(rows: Sequence[AgentCapability]) -> CapabilityCard:
    standings = [agent_capabilities.capability_standing(row) for row in rows]
    return CapabilityCard(
        row=max(rows, key=lambda row: row.last_seen_at),
        text=agent_capabilities.explain_capabilities(rows),
        label=capability_label(min(standings, key=_STANDING_ORDER.index)),
    )


def _capabilities_of_removed_types(observed: CapabilitiesByType) -> list[CapabilityCard]:
    """Return the capabilities of agent types that this installation no longer has."""
    known = agent_types()
    removed = [row for name, rows in observed.items() if name not in known for row in rows]
    return [_capability_card(rows) for rows in agent_capabilities.group_by_agent(removed)]


@dataclass(frozen=True, slots=True)
class AgentTypeCard:
    """An agent type on the page."""

    kind: AgentType
    missing: Sequence[str]
    """Programs that are not installed on this machine."""
    places: Sequence[AgentPlace]
    capabilities: Sequence[CapabilityCard]
    """What was observed of it in the user's teams."""

    @property
    def place_labels(self) -> list[tuple[Executor, Label]]:
        """The executors, each with what is known of the type there."""
        return [(place.executor, place_label(place)) for place in self.places]

    @property
    def unchecked_executors(self) -> list[Executor]:
        """The executors that have not been checked yet."""
        return [place.executor for place in self.places if place.program is ProgramState.UNKNOWN]

    @property
    def resume(self) -> Label:
        """What a restart means for its conversation, in a word or two."""
        return _resume_label(
            resumes=self.kind.supports_session_resume, gets_history=self.kind.history_context_injection
        )

    @property
    def resume_summary(self) -> str:
        """What a resume does for it, in a sentence or two."""
        kind = self.kind
        if not kind.supports_session_resume:
            if kind.history_context_injection:
                return "The agent cannot restore conversations. Your next prompt includes the history."
            return "The agent cannot restore conversations. You can open the workspace and create a new session."
        restores = "The agent restores its own conversation."
        if kind.replays_on_load:
            restores = "The agent restores its own conversation, and Kandev compares what it replays with the log."
        if kind.history_context_injection:
            return f"{restores} If it cannot, your next prompt includes the history."
        return f"{restores} If it cannot, you choose how to continue."

    @property
    def notes(self) -> str:
        """What to know of its login and its stored conversations."""
        return f"{self.kind.notes} {self.kind.setup_notes}".strip().replace("`", "")

    @property
    def is_installed_here(self) -> bool:
        """Whether it needs programs, and all are on this machine."""
        return bool(self.kind.needs) and not self.missing

    @property
    def is_within_reach(self) -> bool:
        """Whether it was seen here, or needs no installation, or is installed on some executor."""
        if self.capabilities or not self.missing:
            return True
        return any(label.tone == "good" for _, label in self.place_labels)


def _agent_type_cards(user: User, search: str, observed: CapabilitiesByType) -> list[AgentTypeCard]:
    """Return the agent types whose title or name contains ``search``, in any case."""
    listed = [(kind, missing) for kind, missing in listed_agent_types() if _is_named(kind, search)]
    executors = list(Executor.objects.all()[:MAX_EXECUTORS_SHOWN])
    places: defaultdict[str, list[AgentPlace]] = defaultdict(list)
    for place in agent_places(user, [kind for kind, _ in listed], executors):
        places[place.kind.name].append(place)
    cards = []
    for kind, missing in listed:
        agents = agent_capabilities.group_by_agent(observed.get(kind.name, ()))
        capabilities = [_capability_card(rows) for rows in agents]
        cards.append(AgentTypeCard(kind, missing, places[kind.name], capabilities))
    return cards


def _is_named(kind: AgentType, text: str) -> bool:
    return text.casefold() in f"{kind.title} {kind.name}".casefold()
