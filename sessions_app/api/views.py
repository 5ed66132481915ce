"""API views that belong to no topic."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.response import Response

from executors_app import __version__
from sessions_app.accounts.requests import UserRequest
from sessions_app.api.base_views import ApiView
from sessions_app.api.serializers.common import document_responses


class VersionSerializer(serializers.Serializer[Any]):
    """The version of this deployment."""

    version = serializers.CharField(help_text="The version of Kandev that answers.")


class VersionView(ApiView):
    """The version of this deployment."""

    @document_responses({200: VersionSerializer})
    def get(self, request: UserRequest) -> Response:
        """Return the version of Kandev that answers."""
        return self.show(VersionSerializer, {"version": __version__})
