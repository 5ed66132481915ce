"""Limits on the size and duration of requests, which apply before authentication.

Daphne buffers a whole body before it calls Django, and waits as long as single bytes keep arriving. An anonymous client
could fill memory and disk that way, or hold every connection (slowloris). Here a request has a deadline, which only a
body that makes progress extends, and a body has a maximum size.
"""

from __future__ import annotations

import json
import resource
from typing import Any, Final

from daphne import http_protocol
from twisted.web import http

from sessions_app.api.base_views import MAX_BODY

MAX_BODY_SIZE: Final = 2 * MAX_BODY
"""Bytes. Above the views' own limit, so that a body slightly too large still gets the view's error."""
REQUEST_TIMEOUT: Final = 60
"""Seconds that a request may take to arrive, and that a connection may be idle between two requests."""
BYTES_PER_EXTENSION: Final = 256 * 1024
"""Bytes of a body after which the deadline is extended: a body slower than about 4 KiB/s is dropped."""
ROOT_PATH_HEADER: Final = b"daphne-root-path"
"""A header of daphne with which any client could change the root path; nothing here uses it."""

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
