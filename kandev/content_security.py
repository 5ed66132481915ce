"""The Content-Security-Policy header: everything from this origin, and one known script within the page."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeVar

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.deprecation import MiddlewareMixin

Response = TypeVar("Response", bound=HttpResponseBase)

HEADER: Final = "Content-Security-Policy"
WHOLE_PAGE: Final = Path(__file__).resolve().parent.parent / "templates" / "parts" / "whole_page.js"
"""What loads an incomplete page again stands in the page, as it must be there when no file could be had."""


def digest(script: Path) -> str:
    """How the policy names a script that stands in the page: by its very bytes."""
    return f"'sha256-{b64encode(sha256(script.read_bytes()).digest()).decode()}'"


POLICY: Final = "; ".join(
    (
        "default-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "img-src 'self' data:",
        "object-src 'none'",
        f"script-src 'self' {digest(WHOLE_PAGE)}",
    )
)


class ContentSecurityPolicyMiddleware(MiddlewareMixin):
    """Adds the policy to every response that has not set one of its own."""

    def process_response(self, request: HttpRequest, response: Response) -> Response:
        """The response, guarded."""
        response.headers.setdefault(HEADER, POLICY)
        return response
