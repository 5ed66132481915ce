"""Middleware: the Content-Security-Policy header (Django), and client addresses from trusted proxies (ASGI)."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path
from typing import Any, Final, TypeVar

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.deprecation import MiddlewareMixin

Response = TypeVar("Response", bound=HttpResponseBase)

CSP_HEADER: Final = "Content-Security-Policy"
INLINE_SCRIPT_PATH: Final = Path(__file__).resolve().parent.parent / "templates" / "parts" / "whole_page.js"
"""What loads an incomplete page again stands in the page, as it must be there when no file could be had."""


def script_digest(script: Path) -> str:
    """How the policy names a script that stands in the page: by its very bytes."""
    return f"'sha256-{b64encode(sha256(script.read_bytes()).digest()).decode()}'"


CSP_POLICY: Final = "; ".join(
    (
        "default-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "img-src 'self' data:",
        "object-src 'none'",
        f"script-src 'self' {script_digest(INLINE_SCRIPT_PATH)}",
    )
)


class ContentSecurityPolicyMiddleware(MiddlewareMixin):
    """Adds the policy to every response that has not set one of its own."""

    def process_response(self, request: HttpRequest, response: Response) -> Response:
        """The response, guarded."""
        response.headers.setdefault(CSP_HEADER, CSP_POLICY)
        return response


Network = IPv4Network | IPv6Network
Scope = dict[str, Any]
Application = Callable[[Scope, Any, Any], Awaitable[None]]


class TrustedProxiesMiddleware:
    """An ASGI application before another one: whom a trusted proxy names is the client; others are not asked.

    The headers are ``X-Forwarded-For``, to which the proxy appends, and ``X-Forwarded-Proto``, which it sets.
    """

    def __init__(self, inner: Application, networks: Sequence[Network]):
        self._inner, self._networks = inner, networks

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Serve one connection."""
        if self._is_trusted_proxy(_client_address(scope)):
            scope = {**scope, "client": [self._client_of(scope), 0], "scheme": _forwarded_scheme(scope)}
        await self._inner(scope, receive, send)

    def _is_trusted_proxy(self, address: str) -> bool:
        try:
            found = ip_address(address)
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return any((mapped or found) in network for network in self._networks)

    def _client_of(self, scope: Scope) -> str:
        """The last address that no trusted proxy has: what stands before it is the caller's own word."""
        chain = [part.strip() for told in _headers(scope, b"x-forwarded-for") for part in told.split(",")]
        chain = [_client_address(scope), *reversed(chain)]
        return next(
            (address for address in chain if not self._is_trusted_proxy(address)), chain[-1]
        ) or _client_address(scope)


def _client_address(scope: Scope) -> str:
    client = scope.get("client") or [""]
    return str(client[0] or "")


def _forwarded_scheme(scope: Scope) -> str:
    told = _headers(scope, b"x-forwarded-proto")
    if not told:
        return str(scope.get("scheme", "http"))
    is_secure = told[-1].rpartition(",")[2].strip().lower() in {"https", "wss"}
    return ("http" if scope["type"] == "http" else "ws") + "s" * is_secure


def _headers(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope.get("headers", ()) if key.lower() == name]
