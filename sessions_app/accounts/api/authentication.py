"""``Authorization: Token KEY``: a program in the name of its user."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import TokenAuthentication
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.permissions import SAFE_METHODS, IsAuthenticated
from rest_framework.request import Request

from sessions_app.accounts import credentials
from sessions_app.accounts.models import ApiToken
from sessions_app.accounts.rate_limits import AttemptLimit, network_of_address

_wrong_token_limit = AttemptLimit("wrong-key", 30, 60)
"""From one network. Nobody guesses 256 random bits; this keeps a program with a wrong key from asking without end."""


def count_wrong_token(request: Request) -> None:
    """A key was wrong; Throttled where too many were. Right ones are never refused, wherever they come from."""
    _wrong_token_limit.require(network_of_address(str(request.META.get("REMOTE_ADDR", ""))))


class ApiTokenAuthentication(TokenAuthentication):
    """By the hash of the key; one that only reads changes nothing, whatever its user may."""

    model = ApiToken

    def authenticate(self, request: Request) -> tuple[Any, Any] | None:
        """User and row; None without a key. AuthenticationFailed (401) for a wrong one, Throttled."""
        try:
            found = super().authenticate(request)
        except AuthenticationFailed:
            count_wrong_token(request)
            raise
        if found is not None and found[1].reads_only and request.method not in SAFE_METHODS:
            raise PermissionDenied("This token is read-only. Create one that can write in your settings.")
        return found

    def authenticate_credentials(self, key: str) -> tuple[Any, Any]:
        """User and row of a key."""
        found = credentials.authenticate_token(key)
        if found is None:
            raise AuthenticationFailed("This token is invalid or has expired.")
        return found


class LoginSessionPermission(IsAuthenticated):
    """Somebody who is logged in, and no program: a token can make no tokens."""

    message = "Log in to create or revoke tokens. A token cannot do that."

    def has_permission(self, request: Request, view: Any) -> bool:
        """Whether this request may go on."""
        return super().has_permission(request, view) and request.auth is None


class _ApiTokenAuthenticationScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How the schema names it: as it has always been named there."""

    target_class = ApiTokenAuthentication
    name = "tokenAuth"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        """A header with a prefix of its own."""
        return {
            "type": "apiKey",
            "in": "header",
            "name": "Authorization",
            "description": 'Token-based authentication with required prefix "Token"',
        }
