"""API views of agents: their types and profiles, logins, and the MCP servers that they are given."""

from __future__ import annotations

import uuid
from functools import cached_property
from typing import Any

from django.contrib.auth.models import Group
from django.db import transaction
from django.http import Http404
from django.shortcuts import get_object_or_404
from rest_framework.response import Response

from executors_app.agents import AgentType
from executors_app.models import AgentProfile
from executors_app.plugins import UnknownPlugin, agent_type, listed_agent_types
from sessions_app.accounts.requests import UserRequest
from sessions_app.accounts.teams import visible_teams
from sessions_app.agents.api.serializers import (
    AgentLoginSerializer,
    AgentTypeSerializer,
    LoginRequestSerializer,
    McpServerListRequestSerializer,
    McpServerListSerializer,
    NewProfileSerializer,
    PlaceLoginSerializer,
    PlaceQuerySerializer,
    PlaceSerializer,
    ProfileChangeSerializer,
    ProfileSerializer,
)
from sessions_app.agents.services import agent_login, agent_setup, mcp_servers, profile_settings
from sessions_app.agents.services.profiles import visible_profiles
from sessions_app.api.base_views import ApiView, SessionApiView, StaffWritePermission, TeamManagerWritePermission
from sessions_app.api.serializers.common import document_responses
from sessions_app.models import Repository, TaskSession
from sessions_app.sessions.services.queries import visible_sessions


def _known_type(name: str) -> AgentType:
    try:
        return agent_type(name)
    except UnknownPlugin as error:
        raise Http404 from error


class SessionLoginView(SessionApiView):
    """Logging a session's agent in."""

    @document_responses({200: AgentLoginSerializer}, 404)
    def get(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Return the ways to log in that the agent has published, and the state of the last login."""
        return self.answer()

    @document_responses({202: AgentLoginSerializer}, 400, 403, 404, 409, request=LoginRequestSerializer)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Start the agent with a login; what waits for it is sent afterwards. Requires access to its terminal."""
        agent_login.request_login(self.session.id, request.user, self.body(LoginRequestSerializer)["method"])
        return self.answer(202)

    def answer(self, status: int = 200) -> Response:
        """Return the document of the session as it is now."""
        session: TaskSession = visible_sessions(self.request.user).get(id=self.session.id)
        kind = _known_type(session.agent_profile.agent_type)
        argv = session.agent_profile.argv(session.executor.runtime)
        reported = agent_login.reported_at(session.task.team_id, session.executor_id, kind.name)
        published, last = agent_login.published_logins(session), agent_login.login_state(session)
        document = agent_login.login_document(kind, reported, argv, session, published=published, last=last)
        return self.show(AgentLoginSerializer, document, status)


class SessionLogoutView(SessionLoginView):
    """Logging a session's agent out."""

    http_method_names = ["post", "options"]

    @document_responses({202: AgentLoginSerializer}, 400, 403, 404, 409, request=None)
    def post(self, request: UserRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> Response:
        """Start the agent to log it out. Everything that uses its login there needs a new one."""
        agent_login.request_logout(self.session.id, request.user)
        return self.answer(202)


class AgentTypeLoginView(ApiView):
    """Logging an agent of a type in for a team on an executor, in the session of its test."""

    @document_responses({200: AgentLoginSerializer}, 400, 404, parameters=[PlaceQuerySerializer])
    def get(self, request: UserRequest, name: str) -> Response:
        """Return the ways to log in that the agent has published there, and the state of the test's last login."""
        return self.answer(name, self.query(PlaceQuerySerializer))

    @document_responses({202: AgentLoginSerializer}, 400, 403, 404, 409, request=PlaceLoginSerializer)
    def post(self, request: UserRequest, name: str) -> Response:
        """Log in by one of these ways, and test the agent with one turn."""
        place = self.body(PlaceLoginSerializer)
        agent_login.log_in_at(request.user, _known_type(name), place["team"], place["executor"], place["method"])
        return self.answer(name, place, 202)

    def answer(self, name: str, place: dict[str, Any], status: int = 200) -> Response:
        """Return the document of this place."""
        kind, team, executor = _known_type(name), place["team"], place["executor"]
        profile = agent_setup.profile_for(kind, team)
        argv = agent_login.profile_argv(profile, kind, executor.runtime)
        reported = agent_login.reported_at(team.pk, executor.pk, kind.name)
        newest = agent_setup.newest_evidence(kind, team, executor, profile)
        session = newest if isinstance(newest, TaskSession) else None
        published = agent_login.published_in_test(kind, team, executor, profile)
        last = agent_login.login_of_test(kind, team, executor, profile)
        document = agent_login.login_document(kind, reported, argv, session, published=published, last=last)
        return self.show(AgentLoginSerializer, document, status)


class AgentTypeLogoutView(AgentTypeLoginView):
    """Logging an agent of a type out for a team on an executor."""

    http_method_names = ["post", "options"]

    @document_responses({202: AgentLoginSerializer}, 400, 403, 404, 409, request=PlaceSerializer)
    def post(self, request: UserRequest, name: str) -> Response:
        """Log the agent out. Everything that uses its login there, also of other teams, needs a new one."""
        place = self.body(PlaceSerializer)
        agent_login.log_out_at(request.user, _known_type(name), place["team"], place["executor"])
        return self.answer(name, place, 202)


class _McpServerListView(ApiView):
    """Base class of the views of one list."""

    permission_classes = [TeamManagerWritePermission]

    @property
    def team(self) -> Group:
        """The team that owns the list. Raises Http404 unless the user is a member or staff."""
        raise NotImplementedError

    @property
    def repository(self) -> Repository | None:
        """The repository that the list is for; None: the whole team."""
        return None

    def _shown(self) -> Response:
        return self.show(McpServerListSerializer, mcp_servers.server_list_json(self.team, self.repository))

    def _replace(self, request: UserRequest) -> Response:
        servers = self.body(McpServerListRequestSerializer)["servers"]
        mcp_servers.replace_servers(self.team, self.repository, servers, request.user)
        return self._shown()


class TeamMcpServerListView(_McpServerListView):
    """The MCP servers of a team."""

    @cached_property
    def team(self) -> Group:
        """The team in the URL. Raises Http404 unless the user is a member or staff."""
        found: Group = get_object_or_404(visible_teams(self.request.user), id=self.kwargs["team_id"])
        return found

    @document_responses({200: McpServerListSerializer}, 404)
    def get(self, request: UserRequest, team_id: int) -> Response:
        """Return the MCP servers that the team gives to the agents of its sessions."""
        return self._shown()

    @document_responses({200: McpServerListSerializer}, 400, 404, request=McpServerListRequestSerializer)
    def put(self, request: UserRequest, team_id: int) -> Response:
        """Replace the team's MCP servers. Staff and the team's admins only; they apply from an agent's next start."""
        return self._replace(request)


class RepositoryMcpServerListView(_McpServerListView):
    """The MCP servers of a repository."""

    @cached_property
    def repository(self) -> Repository:
        """The repository in the URL. Raises Http404 unless the user is a member of its team or staff."""
        found: Repository = get_object_or_404(
            mcp_servers.visible_repositories(self.request.user), id=self.kwargs["repository_id"]
        )
        return found

    @property
    def team(self) -> Group:
        """The repository's team."""
        return self.repository.team

    @document_responses({200: McpServerListSerializer}, 404)
    def get(self, request: UserRequest, repository_id: uuid.UUID) -> Response:
        """Return the MCP servers that agents get in addition when they work in the repository."""
        return self._shown()

    @document_responses({200: McpServerListSerializer}, 400, 404, request=McpServerListRequestSerializer)
    def put(self, request: UserRequest, repository_id: uuid.UUID) -> Response:
        """Replace the repository's MCP servers. Staff and the team's admins only; they apply from the next start."""
        return self._replace(request)


class AgentTypeListView(ApiView):
    """Agent types."""

    @document_responses({200: AgentTypeSerializer(many=True)})
    def get(self, request: UserRequest) -> Response:
        """List the agent types and their capabilities; those whose programs are installed on this machine first."""
        return self.list(AgentTypeSerializer, [kind for kind, _ in listed_agent_types()])


class AgentProfileListCreateView(ApiView):
    """Agent profiles."""

    permission_classes = [StaffWritePermission]

    @document_responses({200: ProfileSerializer(many=True)})
    def get(self, request: UserRequest) -> Response:
        """List the agent profiles that your teams can use."""
        return self.list(ProfileSerializer, visible_profiles(request.user))

    @document_responses({201: ProfileSerializer}, 400, 403, request=NewProfileSerializer)
    def post(self, request: UserRequest) -> Response:
        """Create an agent profile. Staff only, because a profile can name an executable."""
        values = self.body(NewProfileSerializer, any_team=True)
        return self.show(ProfileSerializer, profile_settings.add_profile(values, request.user), 201)


class AgentProfileDetailView(ApiView):
    """One agent profile."""

    @document_responses({200: ProfileSerializer}, 404)
    def get(self, request: UserRequest, profile_id: uuid.UUID) -> Response:
        """Return an agent profile that your teams can use; staff see all."""
        return self.show(ProfileSerializer, self._find(request, profile_id))

    @document_responses({200: ProfileSerializer}, 400, 403, 404, 409, request=ProfileChangeSerializer)
    def patch(self, request: UserRequest, profile_id: uuid.UUID) -> Response:
        """Change settings of an agent profile, disable or enable it.

        Staff change everything but type and team. The admins of its own team change name, model, mode, background
        policy and memory check, and enable only what staff did not disable (`disabled_by_staff`). With `version`, it is
        saved only over that version, else 409 `settings_changed`. `env` and `mcp_servers` replace what is stored.
        """
        profile = self._find(request, profile_id)
        values = self.body(ProfileChangeSerializer)
        version, disabled = values.pop("version", None), values.pop("disabled", None)
        with transaction.atomic():
            profile = profile_settings.change_profile(profile.pk, values, version, request.user)
            if disabled is not None:
                profile = profile_settings.set_disabled(profile.pk, request.user, disabled=disabled)
        return self.show(ProfileSerializer, profile)

    @staticmethod
    def _find(request: UserRequest, profile_id: uuid.UUID) -> AgentProfile:
        found: AgentProfile = get_object_or_404(profile_settings.listed_profiles(request.user), pk=profile_id)
        return found
