"""API views of remotes: members read, staff write."""

from __future__ import annotations

import uuid
from functools import cached_property
from typing import Any

from django.shortcuts import get_object_or_404
from rest_framework.request import Request
from rest_framework.response import Response

from sessions_app.accounts.requests import UserRequest
from sessions_app.agents.services.mcp_servers import visible_repositories
from sessions_app.api.base_views import ApiView, StaffWritePermission
from sessions_app.api.serializers.common import document_responses
from sessions_app.models import Repository, RepositoryRemote
from sessions_app.remotes import services
from sessions_app.remotes.api.serializers import (
    RemoteAddressSerializer,
    RemoteFingerprintsSerializer,
    RemoteKeySerializer,
    RemoteSerializer,
    RemoteTokenSerializer,
)


class RemotePermission(StaffWritePermission):
    """Members of the team can read; only staff can write, and everyone else finds nothing."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return whether the request is allowed. Raises Http404 if the user cannot see the repository."""
        if not request.user.is_authenticated:
            return False
        view.repository  # noqa: B018  (raises Http404)
        return super().has_permission(request, view)


class _RemoteApiView(ApiView):
    permission_classes = [RemotePermission]

    @cached_property
    def repository(self) -> Repository:
        """The repository in the URL. Raises Http404 unless the user is a member of its team or staff."""
        found: Repository = get_object_or_404(visible_repositories(self.request.user), id=self.kwargs["repository_id"])
        return found

    @property
    def remote(self) -> RepositoryRemote:
        """Where its branches are pushed to. Raises NotFound."""
        return services.require_remote(self.repository)

    def shown(self) -> Response:
        """Return the remote as it is now."""
        return self.show(RemoteSerializer, self.remote)


class RemoteView(_RemoteApiView):
    """Where a repository's branches are pushed to."""

    @document_responses({200: RemoteSerializer}, 404)
    def get(self, request: UserRequest, repository_id: uuid.UUID) -> Response:
        """Return the remote, without its secrets."""
        return self.shown()

    @document_responses({200: RemoteSerializer}, 400, 403, 404, request=RemoteAddressSerializer)
    def put(self, request: UserRequest, repository_id: uuid.UUID) -> Response:
        """Record the address. For another server, key, token and host keys are forgotten. Staff only."""
        services.set_address(self.repository, self.body(RemoteAddressSerializer)["address"], request.user)
        return self.shown()

    @document_responses({204: None}, 403, 404, request=None)
    def delete(self, request: UserRequest, repository_id: uuid.UUID) -> Response:
        """Forget the remote, with its key and token. Staff only."""
        services.delete_remote(self.remote, request.user)
        return Response(status=204)


class RemoteKeyView(_RemoteApiView):
    """The deploy key of a remote that is reached by ssh."""

    @document_responses({200: RemoteSerializer}, 400, 403, 404, 409, request=RemoteKeySerializer)
    def put(self, request: UserRequest, repository_id: uuid.UUID) -> Response:
        """Generate a key, or store the given one, in place of the one before. Staff only."""
        given = self.body(RemoteKeySerializer).get("private_key")
        if given is None:
            services.make_key(self.remote, request.user)
        else:
            services.store_key(self.remote, given, request.user)
        return self.shown()


class RemoteTokenView(_RemoteApiView):
    """The token of a remote that is reached by https."""

    @document_responses({200: RemoteSerializer}, 400, 403, 404, 409, request=RemoteTokenSerializer)
    def put(self, request: UserRequest, repository_id: uuid.UUID) -> Response:
        """Store a token, in place of the one before. Staff only."""
        values = self.body(RemoteTokenSerializer)
        services.store_token(self.remote, values.get("username", ""), values["token"], request.user)
        return self.shown()


class RemoteHostKeysView(_RemoteApiView):
    """The keys of the server of a remote that is reached by ssh."""

    @document_responses({200: RemoteSerializer}, 403, 404, 409, 503, request=None)
    def post(self, request: UserRequest, repository_id: uuid.UUID) -> Response:
        """Ask the server for its keys, which are not trusted by that. Staff only."""
        services.fetch_host_keys(self.remote, request.user)
        return self.shown()

    @document_responses({200: RemoteSerializer}, 400, 403, 404, 409, request=RemoteFingerprintsSerializer)
    def put(self, request: UserRequest, repository_id: uuid.UUID) -> Response:
        """Trust the keys with these fingerprints, which are all that the server last showed. Staff only."""
        services.confirm_host_keys(self.remote, self.body(RemoteFingerprintsSerializer)["fingerprints"], request.user)
        return self.shown()


class RemoteTestView(_RemoteApiView):
    """A test of a remote."""

    @document_responses({200: RemoteSerializer}, 403, 404, 503, request=None)
    def post(self, request: UserRequest, repository_id: uuid.UUID) -> Response:
        """List the branches there; ``test_code`` says why that failed. Changes nothing there. Staff only."""
        services.check_connection(self.remote, request.user)
        return self.shown()
