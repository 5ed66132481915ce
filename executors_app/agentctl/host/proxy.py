"""Proxy requests and WebSockets below an instance's path to its agentctl."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final, Self

import aiohttp
from aiohttp import WSCloseCode, WSMsgType, web
from yarl import URL

from executors_app.agentctl.http.server import BODY_LIMIT, HEARTBEAT_INTERVAL, error_response, websocket_for
from executors_app.machine.listeners import LOCAL_HOST_HEADER, AgentctlListener, LocalConnector, connector_url
from executors_app.wire.errors import ExecutorError
from executors_app.wire.protocol import GENERATION_HEADER, SOCKET_MESSAGE_LIMIT, ApiError, Code

logger = logging.getLogger(__name__)

_REQUEST_HEADERS: Final = ("Authorization", GENERATION_HEADER, "If-Match", "Content-Type", "Accept")
_RESPONSE_HEADERS: Final = (
    "Content-Type",
    "Content-Length",
    "ETag",
    "Allow",
    "Cache-Control",
    "X-Content-Type-Options",
)
_MESSAGE_LIMIT: Final = 1 << 20
_CONNECT_TIMEOUT: Final = 5.0
_CODES_BY_STATUS: Final = {
    400: Code.VALIDATION_ERROR,
    401: Code.NOT_AUTHENTICATED,
    404: Code.NOT_FOUND,
    409: Code.CONFLICT,
}

AnyWebSocket = aiohttp.ClientWebSocketResponse | web.WebSocketResponse


class InstanceProxy:
    """Proxies requests to agentctls of this machine, each proven first; use it as an async context manager."""

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(
            # No keep-alive: a connection that is closed just as it is reused would leave a command in doubt.
            connector=LocalConnector(limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT),
            auto_decompress=False,
            trust_env=False,
        )
        self._open: set[web.WebSocketResponse] = set()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def close_sockets(self) -> None:
        """Close all streams with *service restart*: the host ends, but the instances continue."""
        ends = [socket.close(code=WSCloseCode.SERVICE_RESTART, message=b"host_ends") for socket in self._open]
        await asyncio.gather(*ends, return_exceptions=True)

    async def forward(self, request: web.Request, listener: AgentctlListener, path: str) -> web.StreamResponse:
        """Forward a request to an agentctl and stream its answer; raises ApiError."""
        address = f"{connector_url(listener)}{path}"
        if query := request.rel_url.raw_query_string:
            address += f"?{query}"
        url = URL(address, encoded=True)
        headers = {name: request.headers[name] for name in _REQUEST_HEADERS if name in request.headers}
        headers["Host"] = LOCAL_HOST_HEADER
        try:
            if request.headers.get("Upgrade", "").lower() == "websocket":
                return await self._bridge(request, url, headers)
            return await self._forward(request, url, headers)
        except (aiohttp.ClientConnectionError, ConnectionError, ExecutorError) as error:
            raise ApiError(Code.INSTANCE_UNREACHABLE, "the agentctl of this instance does not answer") from error

    async def _forward(self, request: web.Request, url: URL, headers: dict[str, str]) -> web.StreamResponse:
        if (request.content_length or 0) > BODY_LIMIT:
            raise _too_large()
        body, parts = _RequestBody(request), None
        if request.can_read_body:
            parts = body.parts()
        call = self._http.request(
            request.method,
            url,
            headers=headers,
            data=parts,
            allow_redirects=False,
            skip_auto_headers=("Accept-Encoding", "User-Agent"),
        )
        try:
            async with call as found:
                return await _stream_answer(request, found)
        except aiohttp.ClientError:
            if body.too_large:
                raise _too_large() from None
            raise

    async def _bridge(self, request: web.Request, url: URL, headers: dict[str, str]) -> web.StreamResponse:
        """Open the upstream socket first, so that its rejection becomes the answer, then bridge both sockets."""
        near = websocket_for(request, _MESSAGE_LIMIT)
        try:
            far = await self._http.ws_connect(
                url, headers=headers, heartbeat=HEARTBEAT_INTERVAL, max_msg_size=SOCKET_MESSAGE_LIMIT, compress=0
            )
        except aiohttp.WSServerHandshakeError as error:
            code = _CODES_BY_STATUS.get(error.status, Code.INTERNAL_ERROR)
            return error_response(error.status, code, "the agentctl of this instance rejected the WebSocket")
        async with far:
            await near.prepare(request)
            self._open.add(near)
            try:
                await _bridge_sockets(near, far)
            finally:
                self._open.discard(near)
        return near


async def _bridge_sockets(near: web.WebSocketResponse, far: aiohttp.ClientWebSocketResponse) -> None:
    """Bridge two sockets until one closes; then close the other with the same code."""
    pumps = [asyncio.create_task(_forward_messages(near, far)), asyncio.create_task(_forward_messages(far, near))]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.wait(pumps)
        for closed, other in ((near, far), (far, near)):
            if not other.closed:
                await other.close(code=_close_code(closed), message=b"")


async def _forward_messages(source: AnyWebSocket, sink: AnyWebSocket) -> None:
    """Forward messages one way; each send waits for the receiver, so a slow reader delays only its own stream."""
    try:
        async for message in source:
            if message.type == WSMsgType.TEXT:
                await sink.send_str(message.data)
            elif message.type == WSMsgType.BINARY:
                await sink.send_bytes(message.data)
    except (ConnectionError, RuntimeError):
        pass  # the receiver is gone: the other direction ends the bridge


def _close_code(closed: AnyWebSocket) -> int:
    """Return a close code that may be sent; a broken connection has none."""
    code = closed.close_code
    if code is None or code in (WSCloseCode.ABNORMAL_CLOSURE, 1005, 1015):
        return WSCloseCode.INTERNAL_ERROR
    return code


class _RequestBody:
    """A streamed request body with a size limit."""

    def __init__(self, request: web.Request):
        self._request = request
        self.too_large = False

    async def parts(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._request.content.iter_any():
            size += len(part)
            if size > BODY_LIMIT:
                self.too_large = True
                raise _too_large()
            yield part


async def _stream_answer(request: web.Request, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
    headers = {name: upstream.headers[name] for name in _RESPONSE_HEADERS if name in upstream.headers}
    answer = web.StreamResponse(status=upstream.status, headers=headers)
    await answer.prepare(request)
    try:
        async for part in upstream.content.iter_any():
            await answer.write(part)
        await answer.write_eof()
    except (aiohttp.ClientError, ConnectionError) as error:
        # The headers were sent already: abort, so that the truncated answer does not look complete.
        logger.info("an answer was cut off: %s", error)
        if request.transport is not None:
            request.transport.abort()
    return answer


def _too_large() -> ApiError:
    return ApiError(Code.TOO_LARGE, f"a body may have at most {BODY_LIMIT} bytes")
