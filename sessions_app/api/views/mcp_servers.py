"""API views of the MCP servers of teams and repositories."""

from __future__ import annotations

import uuid
from functools import cached_property

from django.contrib.auth.models import Group
from django.shortcuts import get_object_or_404
from rest_framework.request import Request
from rest_framework.response import Response

from sessions_app.accounts.teams import visible_teams
from sessions_app.api.base_views import ApiView, TeamManagerWritePermission
from sessions_app.api.serializers.common import document_responses
from sessions_app.api.serializers.mcp_servers import McpServerListRequestSerializer, McpServerListSerializer
from sessions_app.models import Repository
from sessions_app.services import mcp_servers


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

    def _replace(self, request: Request) -> Response:
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
    def get(self, request: Request, team_id: int) -> Response:
        """Return the MCP servers that the team gives to the agents of its sessions."""
        return self._shown()

    @document_responses({200: McpServerListSerializer}, 400, 404, request=McpServerListRequestSerializer)
    def put(self, request: Request, team_id: int) -> Response:
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
    def get(self, request: Request, repository_id: uuid.UUID) -> Response:
        """Return the MCP servers that agents get in addition when they work in the repository."""
        return self._shown()

    @document_responses({200: McpServerListSerializer}, 400, 404, request=McpServerListRequestSerializer)
    def put(self, request: Request, repository_id: uuid.UUID) -> Response:
        """Replace the repository's MCP servers. Staff and the team's admins only; they apply from the next start."""
        return self._replace(request)
