"""Client addresses from trusted proxies: an ASGI middleware."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any

Network = IPv4Network | IPv6Network
Scope = dict[str, Any]
Application = Callable[[Scope, Any, Any], Awaitable[None]]


class TrustedProxiesMiddleware:
    """ASGI middleware that takes client address and scheme from a trusted proxy's headers.

    The proxy appends to ``X-Forwarded-For`` and sets ``X-Forwarded-Proto``. From any other client both are ignored.
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
        """Return the last address that is not a trusted proxy: the client can forge every entry before it."""
        chain = [part.strip() for value in _headers(scope, b"x-forwarded-for") for part in value.split(",")]
        chain = [_client_address(scope), *reversed(chain)]
        return next(
            (address for address in chain if not self._is_trusted_proxy(address)), chain[-1]
        ) or _client_address(scope)


def _client_address(scope: Scope) -> str:
    client = scope.get("client") or [""]
    return str(client[0] or "")


def _forwarded_scheme(scope: Scope) -> str:
    values = _headers(scope, b"x-forwarded-proto")
    if not values:
        return str(scope.get("scheme", "http"))
    is_secure = values[-1].rpartition(",")[2].strip().lower() in {"https", "wss"}
    return ("http" if scope["type"] == "http" else "ws") + "s" * is_secure


def _headers(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope.get("headers", ()) if key.lower() == name]
