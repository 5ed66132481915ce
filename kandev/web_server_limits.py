"""What a client may cost the web process before anybody knows who that is: so many bytes, in so much time.

Daphne keeps a whole body, however large, before Django is asked, and waits for a request as long as a byte of
it comes now and then; so one stranger could fill memory and disk, or hold every connection (slowloris). Here a
request has a time of its own, which only a body that really moves makes longer, and a body has a largest size.
"""

from __future__ import annotations

import json
import resource
from typing import Any, Final

from daphne import http_protocol
from twisted.web import http

from sessions_app.api.base_views import MAX_BODY

MAX_BODY_SIZE: Final = 2 * MAX_BODY
"""Bytes. What is a little too large is heard out and refused by the view, in its own words."""
REQUEST_TIMEOUT: Final = 60
"""Seconds that a request may take to come in, and a connection may rest between two of them."""
BYTES_PER_EXTENSION: Final = 256 * 1024
"""Bytes of a body after which that time begins anew: less than 5 KiB a second are not waited for."""
ROOT_PATH_HEADER: Final = b"daphne-root-path"
"""A header by which any client could say below which path it is served; nothing here uses it."""

_REFUSAL: Final = json.dumps(
    {"code": "too_large", "message": "The body of the request is too large.", "details": {"limit": MAX_BODY}}
).encode()
_TOO_LARGE: Final = (
    b"HTTP/1.1 413 Content Too Large\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_REFUSAL), _REFUSAL)
)


class LimitedChannel(http.HTTPChannel):
    """A connection whose time does not begin anew with every byte that trickles in."""

    _rests = True

    def connectionMade(self) -> None:  # noqa: N802 - twisted's name
        """Somebody is there."""
        self.timeOut = REQUEST_TIMEOUT
        super().connectionMade()  # type: ignore[no-untyped-call]

    def setTimeout(self, period: float | None) -> Any:  # noqa: N802 - twisted's name
        """A new time: of the connection, or until the next request."""
        self._rests = True
        return super().setTimeout(period)  # type: ignore[no-untyped-call]

    def resetTimeout(self) -> None:  # noqa: N802 - twisted's name
        """Something came: the first of a request begins its time, the rest does not."""
        if self._rests:
            self._rests = False
            super().resetTimeout()  # type: ignore[no-untyped-call]

    def extend_deadline(self) -> None:
        """The request moves: its time begins anew."""
        super().resetTimeout()  # type: ignore[no-untyped-call]


class LimitedRequest(http_protocol.WebRequest):  # type: ignore[misc]
    """A request that is given up as soon as its body is larger than anything here may be."""

    _length = 0
    _is_refused = False

    def gotLength(self, length: int | None) -> None:  # noqa: N802 - twisted's name
        """The head is complete; ``length`` is None for a body that comes in chunks."""
        self.requestHeaders.removeHeader(ROOT_PATH_HEADER)
        super().gotLength(None if length is None else min(length, MAX_BODY_SIZE))
        if length is not None and length > MAX_BODY_SIZE:
            self._refuse()

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802 - twisted's name
        """A piece of the body."""
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
        """The request is complete; one that was refused is nobody's."""
        return None if self._is_refused else super().process()

    def _refuse(self) -> None:
        self._is_refused = True
        self.channel.transport.write(_TOO_LARGE)
        self.channel.loseConnection()


def apply_limits() -> None:
    """Have daphne work so, and with as many connections as this process may have at all."""
    http_protocol.WebRequest = LimitedRequest
    http_protocol.HTTPFactory.protocol = LimitedChannel
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
