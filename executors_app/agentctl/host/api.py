"""The HTTP API of a host: create and list instances with the host's token.

Requests and WebSockets below an instance's path are proxied to its agentctl.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any, Final, Self

import aiohttp
from aiohttp import WSCloseCode, WSMsgType, web
from yarl import URL

from executors_app import __version__
from executors_app.agentctl.host.instances import InstanceManager
from executors_app.agentctl.host.records import parse_observe_timeout, parse_order, parse_proof, parse_uuid
from executors_app.agentctl.http.requests import (
    HEARTBEAT_INTERVAL,
    AuthMiddleware,
    error_response,
    json_response,
    parse_commits,
    parse_number,
    read_json_object,
    websocket_for,
)
from executors_app.agentctl.http.server import BODY_LIMIT
from executors_app.agentctl.http.workspace_api import send_work
from executors_app.machine.sockets import LOCAL_HOST_HEADER, AgentctlListener, LocalConnector, connector_url
from executors_app.wire.errors import ExecutorError, RepositoryUnusable, WorkspaceGone
from executors_app.wire.protocol import GENERATION_HEADER, PROTOCOL_VERSION, SOCKET_MESSAGE_LIMIT, ApiError, Code

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
        query, address = request.rel_url.raw_query_string, connector_url(listener)
        url = URL(f"{address}{path}?{query}" if query else f"{address}{path}", encoded=True)
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
        body = _RequestBody(request) if request.can_read_body else None
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
                return await _stream_answer(request, found)
        except aiohttp.ClientError:
            if body and body.too_large:
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


_INSTANCE: Final = "execution_id"
_PREFIX: Final = re.compile(r"/instances/[^/]+")
_PERMANENT_ERRORS: Final = (WorkspaceGone, RepositoryUnusable)

InstanceHandler = Callable[[web.Request], Awaitable[Any]]


def build_app(
    auth: HostAuthMiddleware, instances: InstanceManager, proxy: InstanceProxy, boot_id: str
) -> web.Application:
    """Build the application of a host daemon."""
    app = web.Application(middlewares=auth.middlewares(), client_max_size=BODY_LIMIT)
    app.add_routes(_Api(instances, proxy, boot_id).routes())
    return app


class HostAuthMiddleware(AuthMiddleware):
    """Like agentctl's, but with only the digest of its token; ``/instances/{id}/`` accepts the instance's token."""

    def __init__(self, instances: InstanceManager, digest: str, host: str, port: int, names: Collection[str] = ()):
        super().__init__("", host, port, lambda: None, names)
        self._instances, self._digest = instances, digest

    def is_valid_token(self, request: web.Request, bearer: bytes) -> bool:
        """Check the instance's token for requests to an instance, the host's for everything else."""
        if "tail" in request.match_info:
            return self._instances.is_valid_token(_execution_id_of(request), bearer)
        return hmac.compare_digest(hashlib.sha256(bearer).hexdigest(), self._digest)


class _Api:
    def __init__(self, instances: InstanceManager, proxy: InstanceProxy, boot_id: str):
        self._instances, self._proxy, self._boot_id = instances, proxy, boot_id

    def routes(self) -> list[web.RouteDef]:
        """Return all routes."""
        instance, leftover = "/instances/{execution_id}", "/left/{execution_id}"
        return [
            web.get("/health", self._health),
            web.get("/host", _with_api_errors(self._host)),
            web.get("/instances", _with_api_errors(self._list)),
            web.post("/instances", _with_api_errors(self._create)),
            web.delete(instance, _with_api_errors(self._end)),
            web.get(leftover, _with_api_errors(self._leftover)),
            web.get(f"{leftover}/journal", _with_api_errors(self._journal)),
            web.post(f"{leftover}/end", _with_api_errors(self._end_leftovers)),
            web.post(f"{leftover}/work", _with_api_errors(self._work)),
            web.route("*", instance + "/{tail:.*}", self._forward),
        ]

    async def _health(self, request: web.Request) -> web.Response:
        known = {"version": PROTOCOL_VERSION, "release": __version__, "boot_id": self._boot_id}
        return json_response({"status": "ok", **known})

    async def _host(self, request: web.Request) -> Any:
        return {
            "host_id": self._instances.host_id,
            "version": PROTOCOL_VERSION,
            "release": __version__,
            "boot_id": self._boot_id,
        }

    async def _list(self, request: web.Request) -> Any:
        found = await self._instances.observe(parse_observe_timeout(request.query.get("timeout")))
        return {"host_id": self._instances.host_id, "boot_id": self._boot_id, "instances": found}

    async def _create(self, request: web.Request) -> Any:
        order = parse_order(await read_json_object(request))
        return {"host_id": self._instances.host_id, **await self._instances.create(order)}

    async def _end(self, request: web.Request) -> Any:
        body = await read_json_object(request)
        end = self._instances.forget if body.get("forget") is True else self._instances.end
        return {"ended": await end(_execution_id_of(request), parse_proof(body))}

    async def _leftover(self, request: web.Request) -> Any:
        return {"resume_token": self._instances.resume_token(_execution_id_of(request))}

    async def _journal(self, request: web.Request) -> Any:
        after, epoch = parse_number(request.query.get("after", "0"), "after"), request.query.get("epoch", "")
        return await asyncio.to_thread(self._instances.journal_page, _execution_id_of(request), after, epoch)

    async def _end_leftovers(self, request: web.Request) -> Any:
        proof = parse_proof(await read_json_object(request))
        return {"ended": await self._instances.end_leftovers(_execution_id_of(request), proof)}

    async def _work(self, request: web.Request) -> web.StreamResponse:
        known = parse_commits(await read_json_object(request))
        packed, bundle = await asyncio.to_thread(self._instances.pack_work, _execution_id_of(request), known)
        return await send_work(request, packed, bundle)

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        listener = self._instances.find_listener(_execution_id_of(request))
        return await self._proxy.forward(request, listener, _PREFIX.sub("", request.rel_url.raw_path, count=1))


def _execution_id_of(request: web.Request) -> str:
    return parse_uuid(request.match_info[_INSTANCE], _INSTANCE)


def _with_api_errors(answer: InstanceHandler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Wrap a handler: JSON answers, and 409 or 503 for errors of an instance."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            found = await answer(request)
        except ExecutorError as error:
            status = 409 if isinstance(error, _PERMANENT_ERRORS) else 503
            return error_response(status, error.code, error.message, {"permanent": error.permanent})
        if isinstance(found, web.StreamResponse):
            return found
        return json_response(found)

    return handle
