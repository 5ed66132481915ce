"""What applies to a request before Django: limits on its size and duration, and the client address behind a proxy.

Daphne buffers a whole body before it calls Django, and waits as long as single bytes keep arriving. An anonymous client
could fill memory and disk that way, or hold every connection (slowloris). Here a request has a deadline, which only a
body that makes progress extends, and a body has a maximum size.

Frames of a WebSocket wait in memory until the application reads them, so their rate is limited where they arrive.
Daphne itself limits a frame to 1 MiB.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Network, IPv6Network
from typing import Any, ClassVar, Final

from daphne import http_protocol, ws_protocol
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web import http

from sessions_app.accounts.client_address import parse_client_address
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
FRAMES_PER_SECOND: Final = 500
FRAME_BURST: Final = 4000
"""Frames that may arrive at once: a page acknowledges each frame of a shell that prints megabytes."""
FRAME_BYTES_PER_SECOND: Final = 1 << 20
FRAME_BYTES_BURST: Final = 8 << 20
SMALL_FRAMES_PER_SECOND: Final = 50
SMALL_FRAME_BURST: Final = 500
"""Pings, pongs, and parts of a message: a client needs few, and each costs as much as a message."""
STEPS_PER_TURN: Final = 100
"""Frames or parts of one that are read before other connections get their turn. What one read of a connection brings
can have ten thousand."""
EARLY_BYTES: Final = 64 * 1024
"""Bytes that a client may send before the application has accepted its socket."""
CLOSE_TOO_MANY: Final = 4429
"""Close code of a client that sends too much (``sessions_app.stream.live.authentication.CloseCode.TOO_MANY``)."""
CLOSE_NORMAL: Final = 1000
_MESSAGE_OPCODES: Final = (1, 2)
"""A text and bytes. Others continue a message, or are control frames."""


class LimitedChannel(http.HTTPChannel):
    """A connection whose timeout is not reset by every byte that arrives."""

    open_ones: ClassVar[set[LimitedChannel]] = set()
    """The connections of this process, without those that have become WebSockets."""
    is_ending: ClassVar[bool] = False
    """Whether this process ends: each connection is closed after its present request."""
    _is_idle = True

    def connectionMade(self) -> None:  # noqa: N802 - twisted's name
        """Apply the timeout to a new connection."""
        self.timeOut = REQUEST_TIMEOUT
        self.open_ones.add(self)
        super().connectionMade()  # type: ignore[no-untyped-call]
        if self.is_ending:
            self.close_if_idle()

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: N802 - twisted's name
        """Forget the connection."""
        self.open_ones.discard(self)
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def checkPersistence(self, request: Any, version: bytes) -> bool:  # noqa: N802 - twisted's name
        """Return whether the connection stays open after this request."""
        return not self.is_ending and bool(super().checkPersistence(request, version))  # type: ignore[no-untyped-call]

    def requestDone(self, request: Any) -> None:  # noqa: N802 - twisted's name
        """Close the connection after an answer if the process ends; what was written is sent first."""
        if self.is_ending:
            self.persistent = False
        super().requestDone(request)  # type: ignore[no-untyped-call]

    def close_if_idle(self) -> None:
        """Close the connection unless a request is arriving or being answered."""
        if self._is_idle and not self.requests:
            self.loseConnection()  # type: ignore[no-untyped-call]

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
        if length is None or length <= MAX_BODY_SIZE:
            super().gotLength(length)
            return
        super().gotLength(MAX_BODY_SIZE)
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
        if self._is_refused:
            return None
        channel = self.channel
        processed = super().process()
        if self.transport is None:  # it has become a WebSocket's
            channel.open_ones.discard(channel)
        return processed

    def handle_reply(self, message: Any) -> None:
        """Pass a part of the answer on; its head says whether the connection is closed after it."""
        if message["type"] == "http.response.start" and LimitedChannel.is_ending:
            self.setHeader(b"Connection", b"close")
        super().handle_reply(message)

    def _refuse(self) -> None:
        self._is_refused = True
        self.channel.transport.write(_TOO_LARGE)
        self.channel.loseConnection()


class TokenBucket:
    """Allows ``burst`` at once, and ``rate`` per second in the long run."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic):
        self._rate, self._burst, self._clock = rate, burst, clock
        self._left, self._at = burst, clock()

    def take(self, amount: float) -> bool:
        """Take the amount; return False if there is not enough left."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if amount > self._left:
            return False
        self._left -= amount
        return True


class LimitedWebSocket(ws_protocol.WebSocketProtocol):  # type: ignore[misc]
    """A WebSocket that is closed with 4429 if its client sends too many frames or bytes."""

    is_closing = False
    _is_application_asked = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._messages = TokenBucket(FRAMES_PER_SECOND, FRAME_BURST)
        self._small_frames = TokenBucket(SMALL_FRAMES_PER_SECOND, SMALL_FRAME_BURST)
        self._bytes = TokenBucket(FRAME_BYTES_PER_SECOND, FRAME_BYTES_BURST)

    def onConnect(self, request: Any) -> Any:  # noqa: N802 - autobahn's name
        """Ask the application whether it accepts the socket."""
        self._is_application_asked = True
        return super().onConnect(request)

    def consumeData(self) -> None:  # noqa: N802 - autobahn's name
        """Read what has arrived, a part in each turn of the event loop; nothing before the socket is accepted."""
        if self.is_closing:
            self.data = b""
        elif self.state == self.STATE_CONNECTING and self._is_application_asked:
            # autobahn would read it as another handshake.
            if len(self.data) > EARLY_BYTES:
                self.transport.abortConnection()
        elif self.state in (self.STATE_OPEN, self.STATE_CLOSING):
            self._read_frames()
        else:
            super().consumeData()

    def _read_frames(self) -> None:
        for _ in range(STEPS_PER_TURN):
            if self.is_closing or self.state == self.STATE_CLOSED or not self.processData():
                return
        self.transport.pauseProducing()
        self.factory.reactor.callLater(0, self._continue_reading)

    def _continue_reading(self) -> None:
        if self.state != self.STATE_CLOSED:
            self.transport.resumeProducing()
            self.consumeData()

    def onFrameBegin(self) -> None:  # noqa: N802 - autobahn's name
        """Count a frame, also if it is no message."""
        super().onFrameBegin()
        frame = self.current_frame
        frames = self._small_frames
        if frame.opcode in _MESSAGE_OPCODES:
            frames = self._messages
        if not (frames.take(1) and self._bytes.take(frame.length)):
            self._refuse()

    def onMessage(self, payload: bytes, isBinary: bool) -> None:  # noqa: N802, N803 - autobahn's names
        """Pass a message on to the application."""
        if not self.is_closing:
            super().onMessage(payload, isBinary)

    def serverClose(self, code: int | None = None) -> None:  # noqa: N802 - daphne's name
        """Close the socket; unlike autobahn's method also with the codes for servers, 1011 and 1012."""
        if code is None:
            code = CLOSE_NORMAL
        self.sendCloseFrame(code=code)

    def _refuse(self) -> None:
        self.end(CLOSE_TOO_MANY)

    def end(self, code: int) -> None:
        """Close the socket with this code, and tell the application that it is closed."""
        if not self.is_closing:
            self.is_closing = True
            self.serverClose(code=code)
            self.muted = True
            self.application_queue.put_nowait({"type": "websocket.disconnect", "code": code})


def apply_limits() -> None:
    """Apply the limits to daphne, and raise the limit of open files to the maximum."""
    http_protocol.WebRequest = LimitedRequest
    ws_protocol.WebSocketFactory.protocol = LimitedWebSocket
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
            scope = scope | {"client": [self._client_of(scope), 0], "scheme": _forwarded_scheme(scope)}
        await self._inner(scope, receive, send)

    def _is_trusted_proxy(self, address: str) -> bool:
        found = parse_client_address(address)
        return found is not None and any(found in network for network in self._networks)

    def _client_of(self, scope: Scope) -> str:
        """Return the last address that is not a trusted proxy: the client can forge every entry before it.

        It is empty if that entry holds no address: all clients that cannot be told apart then count as one caller.
        """
        proxies = [_client_address(scope)]
        entries = ",".join(_headers(scope, b"x-forwarded-for")).split(",")
        for entry in reversed(list(filter(None, map(str.strip, entries)))):
            if not self._is_trusted_proxy(entry):
                address = parse_client_address(entry)
                if address is None:
                    return ""
                return str(address)
            proxies.append(entry)
        return str(parse_client_address(proxies[-1]))


def _client_address(scope: Scope) -> str:
    client = scope.get("client") or [""]
    return str(client[0] or "")


def _forwarded_scheme(scope: Scope) -> str:
    values = _headers(scope, b"x-forwarded-proto")
    if not values:
        return str(scope.get("scheme", "http"))
    is_secure = values[-1].rpartition(",")[2].strip().lower() in {"https", "wss"}
    if scope["type"] == "http":
        return "https" if is_secure else "http"
    return "wss" if is_secure else "ws"


def _headers(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope.get("headers", ()) if key.lower() == name]
