"""Authenticate API requests with ``Authorization: Token KEY``."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import TokenAuthentication
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.permissions import SAFE_METHODS, IsAuthenticated
from rest_framework.request import Request

from sessions_app.accounts import credentials
from sessions_app.accounts.client_address import network_of_address
from sessions_app.accounts.models import ApiToken
from sessions_app.accounts.rate_limits import AttemptLimit

_wrong_token_limit = AttemptLimit("wrong-key", 30, 60)
"""For each network. Nobody can guess 256 random bits; the limit stops a misconfigured program that keeps retrying."""


WRONG_KEY_MESSAGE: Final = "This token is invalid or has expired."
READ_ONLY_MESSAGE: Final = "This token is read-only. Create one that can write in your settings."


def count_wrong_token(request: Request) -> None:
    """Count a wrong key. Raises Throttled after too many; valid keys from the same network are never refused."""
    count_wrong_token_from(str(request.META.get("REMOTE_ADDR", "")))


def count_wrong_token_from(address: str) -> None:
    """Count a wrong key from a client's address. Raises Throttled as ``count_wrong_token``."""
    _wrong_token_limit.require(network_of_address(address))


class ApiTokenAuthentication(TokenAuthentication):
    """Finds tokens by the hash of the key. A read-only token cannot change anything, whatever its user may do."""

    model = ApiToken

    def authenticate(self, request: Request) -> tuple[Any, Any] | None:
        """Return (user, token); None without a key. Raises AuthenticationFailed, Throttled, and PermissionDenied."""
        try:
            found = super().authenticate(request)
        except AuthenticationFailed:
            count_wrong_token(request)
            raise
        if found is not None and found[1].reads_only and request.method not in SAFE_METHODS:
            raise PermissionDenied(READ_ONLY_MESSAGE)
        return found

    def authenticate_credentials(self, key: str) -> tuple[Any, Any]:
        """Return (user, token) for a key. Raises AuthenticationFailed."""
        found = credentials.authenticate_token(key)
        if found is None:
            raise AuthenticationFailed(WRONG_KEY_MESSAGE)
        return found


class LoginSessionPermission(IsAuthenticated):
    """Requires a browser login: a token must not be able to create tokens, which would outlive it."""

    message = "Log in to create or revoke tokens. A token cannot do that."

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return whether the request comes from a login and not from a token."""
        return super().has_permission(request, view) and request.auth is None


class _ApiTokenAuthenticationScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Describes the token in the OpenAPI schema, under the name that it has always had there."""

    target_class = ApiTokenAuthentication
    name = "tokenAuth"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        """Return the description of the ``Authorization`` header."""
        return {
            "type": "apiKey",
            "in": "header",
            "name": "Authorization",
            "description": 'Token-based authentication with required prefix "Token"',
        }
