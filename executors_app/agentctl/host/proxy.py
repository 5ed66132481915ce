"""Passes requests and WebSockets on to the agentctl of an instance, so that a host opens one port for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final, Self

import aiohttp
from aiohttp import WSCloseCode, WSMsgType, web
from yarl import URL

from executors_app.agentctl.door import error_answer
from executors_app.agentctl.places.listeners import Listener, host_header_of
from executors_app.agentctl.places.local_connector import LocalConnector, url_for
from executors_app.agentctl.protocol import GENERATION_HEADER, Code
from executors_app.agentctl.refusals import Refused
from executors_app.agentctl.server import BODY_LIMIT
from executors_app.errors import ExecutorError

logger = logging.getLogger(__name__)

_ASKED: Final = ("Authorization", GENERATION_HEADER, "If-Match", "Content-Type", "Accept")
_ANSWERED: Final = ("Content-Type", "Content-Length", "ETag", "Allow", "Cache-Control", "X-Content-Type-Options")
_HEARTBEAT: Final = 30.0
_MESSAGE_LIMIT: Final = 1 << 20
_GOODBYE: Final = 2.0
_CONNECT_WITHIN: Final = 5.0
_REFUSALS: Final = {400: Code.VALIDATION_ERROR, 401: Code.NOT_AUTHENTICATED, 404: Code.NOT_FOUND, 409: Code.CONFLICT}

Socket = aiohttp.ClientWebSocketResponse | web.WebSocketResponse


class Proxy:
    """Connections within this machine, each to a proven agentctl; ``async with Proxy()``."""

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(
            # A kept connection may be closed just as it is used again, and a command be in doubt for nothing.
            connector=LocalConnector(limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_WITHIN),
            auto_decompress=False,
            trust_env=False,
        )
        self._open: set[web.WebSocketResponse] = set()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def close_sockets(self) -> None:
        """Tell all streams that the host ends; their instances go on, so it is not *going away*."""
        ends = [socket.close(code=WSCloseCode.SERVICE_RESTART, message=b"host_ends") for socket in self._open]
        await asyncio.gather(*ends, return_exceptions=True)

    async def pass_on(self, request: web.Request, listener: Listener, path: str) -> web.StreamResponse:
        """The answer of an agentctl to this request for ``path``, as it comes; raises Refused."""
        query, address = request.rel_url.raw_query_string, url_for(listener)
        url = URL(f"{address}{path}?{query}" if query else f"{address}{path}", encoded=True)
        headers = {name: request.headers[name] for name in _ASKED if name in request.headers}
        headers["Host"] = host_header_of(listener)
        try:
            if request.headers.get("Upgrade", "").lower() == "websocket":
                return await self._bridge(request, url, headers)
            return await self._forward(request, url, headers)
        except (aiohttp.ClientConnectionError, ConnectionError, ExecutorError) as error:
            raise Refused(Code.INSTANCE_UNREACHABLE, "the agentctl of this instance does not answer") from error

    async def _forward(self, request: web.Request, url: URL, headers: dict[str, str]) -> web.StreamResponse:
        if (request.content_length or 0) > BODY_LIMIT:
            raise _too_large()
        body = _Body(request) if request.can_read_body else None
        call = self._http.request(
            request.method,
            url,
            headers=headers,
            data=body.parts() if body else None,
            allow_redirects=False,
            skip_auto_headers=("Accept-Encoding", "User-Agent"),
        )
        try:
            async with call as found:
                return await _hand_on(request, found)
        except aiohttp.ClientError:
            if body and body.too_large:
                raise _too_large() from None
            raise

    async def _bridge(self, request: web.Request, url: URL, headers: dict[str, str]) -> web.StreamResponse:
        """First the far socket, so that its refusal is the answer; then this one, and everything both ways."""
        near = web.WebSocketResponse(
            compress=False, heartbeat=_HEARTBEAT, max_msg_size=_MESSAGE_LIMIT, timeout=_GOODBYE
        )
        if not near.can_prepare(request).ok:
            raise web.HTTPBadRequest(reason="this is a WebSocket")
        try:
            far = await self._http.ws_connect(url, headers=headers, heartbeat=_HEARTBEAT, max_msg_size=0, compress=0)
        except aiohttp.WSServerHandshakeError as error:
            code = _REFUSALS.get(error.status, Code.INTERNAL_ERROR)
            return error_answer(error.status, code, "the agentctl of this instance refused to open it")
        async with far:
            await near.prepare(request)
            self._open.add(near)
            try:
                await _both_ways(near, far)
            finally:
                self._open.discard(near)
        return near


async def _both_ways(near: web.WebSocketResponse, far: aiohttp.ClientWebSocketResponse) -> None:
    """Until one of them closes; the other is then closed with the same code."""
    pumps = [asyncio.create_task(_pump(near, far)), asyncio.create_task(_pump(far, near))]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.wait(pumps)
        for one, other in ((near, far), (far, near)):
            if not other.closed:
                await other.close(code=_code_of(one), message=b"")


async def _pump(source: Socket, sink: Socket) -> None:
    """Each send waits until the other side has taken it: a slow reader holds up its own stream alone."""
    try:
        async for message in source:
            if message.type == WSMsgType.TEXT:
                await sink.send_str(message.data)
            elif message.type == WSMsgType.BINARY:
                await sink.send_bytes(message.data)
    except (ConnectionError, RuntimeError):
        pass  # the sink is gone; its own pump ends the pair


def _code_of(closed: Socket) -> int:
    """A code that may be sent: a connection that was cut has none."""
    code = closed.close_code
    if code is None or code in (WSCloseCode.ABNORMAL_CLOSURE, 1005, 1015):
        return WSCloseCode.INTERNAL_ERROR
    return code


class _Body:
    """A request's body as it comes, up to the limit."""

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


async def _hand_on(request: web.Request, found: aiohttp.ClientResponse) -> web.StreamResponse:
    kept = {name: found.headers[name] for name in _ANSWERED if name in found.headers}
    answer = web.StreamResponse(status=found.status, headers=kept)
    await answer.prepare(request)
    try:
        async for part in found.content.iter_any():
            await answer.write(part)
        await answer.write_eof()
    except (aiohttp.ClientError, ConnectionError) as error:
        # The head has gone out: a torn answer must not look like a whole one.
        logger.info("an answer was cut off: %s", error)
        if request.transport is not None:
            request.transport.abort()
    return answer


def _too_large() -> Refused:
    return Refused(Code.TOO_LARGE, f"a body may have {BODY_LIMIT} bytes")
