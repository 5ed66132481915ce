"""The schema, the page that shows it, and the answer to every address that is none."""

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
    """The schema to browse: everything from this origin, nothing inline."""

    permission_classes = [IsAuthenticated]
    template_name = "api/docs.html"
    url_name = "api-schema"


@extend_schema(exclude=True)
class NotFoundView(APIView):
    """An address under the API that is none, whatever is done with it."""

    authentication_classes = []
    permission_classes = [AllowAny]

    def http_method_not_allowed(self, request: Any, *args: Any, **kwargs: Any) -> NoReturn:
        """Say so; 404."""
        raise NotFound("There is nothing at this address. The addresses of the API end with a slash.")

    options = http_method_not_allowed
