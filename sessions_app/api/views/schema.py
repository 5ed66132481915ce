"""The OpenAPI schema, the page that shows it, and the 404 of unknown API addresses."""

from __future__ import annotations

from typing import Any, NoReturn

from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.exceptions import NotFound
from rest_framework.permissions import AllowAny, IsAuthenticated
from rest_framework.views import APIView


class SchemaView(SpectacularAPIView):
    """The OpenAPI schema."""

    permission_classes = [IsAuthenticated]


class DocumentationView(SpectacularSwaggerSplitView):
    """The schema as a web page; everything is served from this origin, and nothing is inline."""

    permission_classes = [IsAuthenticated]
    template_name = "api/docs.html"
    url_name = "api-schema"


@extend_schema(exclude=True)
class NotFoundView(APIView):
    """Any other address below the API's root, for every method."""

    authentication_classes = []
    permission_classes = [AllowAny]

    def http_method_not_allowed(self, request: Any, *args: Any, **kwargs: Any) -> NoReturn:
        """Respond with 404."""
        raise NotFound("There is no API endpoint at this address. API addresses end with a slash.")

    options = http_method_not_allowed
