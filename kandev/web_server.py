"""What applies to a request before Django: limits on its size and duration, and the client address behind a proxy.

Daphne buffers a whole body before it calls Django, and waits as long as single bytes keep arriving. An anonymous client
could fill memory and disk that way, or hold every connection (slowloris). Here a request has a deadline, which only a
body that makes progress extends, and a body has a maximum size.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any, Final

from daphne import http_protocol
from twisted.web import http

from sessions_app.api.base_views import MAX_BODY, MAX_PROMPT_BODY

MAX_BODY_SIZE: Final = MAX_PROMPT_BODY
"""Bytes. Above the view's own limit except for prompts, so that a body slightly too large gets the view's error."""
REQUEST_TIMEOUT: Final = 60
"""Seconds that a request may take to arrive, and that a connection may be idle between two requests."""
BYTES_PER_EXTENSION: Final = 256 * 1024
"""Bytes of a body after which the deadline is extended: a body slower than about 4 KiB/s is dropped."""
ROOT_PATH_HEADER: Final = b"daphne-root-path"
"""A header that daphne reads, with which any client could change the root path; Kandev does not use it."""

_REFUSAL: Final = json.dumps(
    {"code": "too_large", "message": "The request body is too large.", "details": {"limit": MAX_BODY}}
).encode()
_TOO_LARGE: Final = (
    b"HTTP/1.1 413 Content Too Large\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_REFUSAL), _REFUSAL)
)


class LimitedChannel(http.HTTPChannel):
    """A connection whose timeout is not reset by every byte that arrives."""

    _is_idle = True

    def connectionMade(self) -> None:  # noqa: N802 - twisted's name
        """Apply the timeout to a new connection."""
        self.timeOut = REQUEST_TIMEOUT
        super().connectionMade()  # type: ignore[no-untyped-call]

    def setTimeout(self, period: float | None) -> Any:  # noqa: N802 - twisted's name
        """Start a new timeout: of the connection, or until the next request."""
        self._is_idle = True
        return super().setTimeout(period)  # type: ignore[no-untyped-call]

    def resetTimeout(self) -> None:  # noqa: N802 - twisted's name
        """Handle arriving data: only the first of a request restarts the timeout."""
        if self._is_idle:
            self._is_idle = False
            super().resetTimeout()  # type: ignore[no-untyped-call]

    def extend_deadline(self) -> None:
        """Restart the timeout, because the request makes progress."""
        super().resetTimeout()  # type: ignore[no-untyped-call]


class LimitedRequest(http_protocol.WebRequest):  # type: ignore[misc]
    """A request that is rejected as soon as its body exceeds ``MAX_BODY_SIZE``."""

    _length = 0
    _is_refused = False

    def gotLength(self, length: int | None) -> None:  # noqa: N802 - twisted's name
        """Handle the end of the headers; ``length`` is None for a chunked body."""
        self.requestHeaders.removeHeader(ROOT_PATH_HEADER)
        super().gotLength(None if length is None else min(length, MAX_BODY_SIZE))
        if length is not None and length > MAX_BODY_SIZE:
            self._refuse()

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802 - twisted's name
        """Handle a part of the body."""
        before, self._length = self._length, self._length + len(data)
        if self._is_refused:
            return
        if self._length > MAX_BODY_SIZE:
            self._refuse()
            return
        if before // BYTES_PER_EXTENSION < self._length // BYTES_PER_EXTENSION:
            self.channel.extend_deadline()
        super().handleContentChunk(data)

    def process(self) -> Any:
        """Process the complete request, unless it was rejected."""
        return None if self._is_refused else super().process()

    def _refuse(self) -> None:
        self._is_refused = True
        self.channel.transport.write(_TOO_LARGE)
        self.channel.loseConnection()


def apply_limits() -> None:
    """Apply the limits to daphne, and raise the limit of open files to the maximum."""
    http_protocol.WebRequest = LimitedRequest
    http_protocol.HTTPFactory.protocol = LimitedChannel
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


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
