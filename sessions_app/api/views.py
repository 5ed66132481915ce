"""API views that belong to no topic."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.http import HttpResponse
from drf_spectacular.settings import spectacular_settings
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView
from rest_framework import serializers
from rest_framework.permissions import IsAuthenticated
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


class SchemaView(SpectacularAPIView):
    """The OpenAPI document of this release, which is the same for everyone."""

    permission_classes = (IsAuthenticated,)

    @extend_schema(exclude=True)
    def get(self, request: UserRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Return the document in the format that the client accepts."""
        renderer: Any = self.perform_content_negotiation(request)[0]
        name = f"{spectacular_settings.TITLE}.{renderer.format}"
        charset = f"; charset={renderer.charset}" if renderer.charset else ""
        return HttpResponse(
            _schema(renderer.format),
            content_type=f"{renderer.media_type}{charset}",
            headers={"Content-Disposition": f'inline; filename="{name}"'},
        )


@cache
def _schema(name: str) -> bytes:
    """Return the document in a format; it is made once in each process, because that takes seconds."""
    renderer: Any = next(one for one in SchemaView.renderer_classes if one.format == name)
    generator: Any = SpectacularAPIView.generator_class()
    made: Any = renderer().render(generator.get_schema(public=True), renderer_context={})
    return bytes(made)
