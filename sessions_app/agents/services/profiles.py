"""The agent profiles that a user can see and a task can use, and those that new sessions are offered."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db.models import Q, QuerySet

from executors_app.models import AgentProfile
from sessions_app.accounts.team_scope import teams_of
from sessions_app.models import Task


def enabled(profiles: QuerySet[AgentProfile]) -> QuerySet[AgentProfile]:
    """Return those that new sessions are offered; sessions that have a disabled one go on."""
    return profiles.filter(disabled_at=None)


def visible_profiles(user: User) -> QuerySet[AgentProfile]:
    """Return the profiles shared with everyone, and those of the user's teams."""
    return AgentProfile.objects.filter(Q(team=None) | Q(team__in=teams_of(user)))


def profiles_for(task: Task) -> QuerySet[AgentProfile]:
    """Return the profiles that a task's sessions may use. Profiles contain secrets, so other teams' are left out."""
    return profiles_of(task.team_id)


def profiles_of(team_id: int) -> QuerySet[AgentProfile]:
    """Return the profiles shared with everyone, and those of one team."""
    return AgentProfile.objects.filter(Q(team=None) | Q(team=team_id))
