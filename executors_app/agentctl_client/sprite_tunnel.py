"""TCP tunnels into sprites through the organisation's API: agentctl listens only on the sprite's own loopback.

``WSS /v1/sprites/{name}/proxy`` (https://sprites.dev/api/sprites/proxy): a JSON message names host and port, another
answers, and from then on binary messages are the bytes of the connection. The organisation's token goes only to the
API. A sprite's public URL is not used: it requires that token in the header that agentctl uses for its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import orjson
from django.conf import settings

from executors_app.machine.listeners import LocalConnector
from executors_app.wire.protocol import SOCKET_MESSAGE_LIMIT

SUFFIX: Final = ".sprite.invalid"
"""Suffix of the host in a sprite's agentctl URL; such names never resolve (RFC 6761)."""
_CHUNK: Final = 64 << 10
_CLOSE_TIMEOUT: Final = 2.0
_CONNECT_TIMEOUT: Final = 20.0
"""Seconds; a cold sprite takes one or two."""


def sprite_in_host(host: str | None) -> str:
    """Return the sprite that an agentctl URL's host names; empty if it names none."""
    if host and host.endswith(SUFFIX):
        return host.removesuffix(SUFFIX)
    return ""


def tunnel_host_header(url: str) -> dict[str, str]:
    """Return the Host header for agentctl, which accepts only names of its own loopback."""
    try:
        parts = urlsplit(url)
        if sprite_in_host(parts.hostname):
            return {"Host": f"localhost:{parts.port}"}
        return {}
    except ValueError:
        return {}


class TunnelConnector(LocalConnector):
    """A connector that opens a tunnel if the URL's host names a sprite."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self._relays: set[asyncio.Task[None]] = set()

    def close(self, *, abort_ssl: bool = False) -> Any:
        """Close the connector; awaiting the result waits for the tunnels, too."""
        closing, relays = super().close(abort_ssl=abort_ssl), list(self._relays)
        if relays:
            return asyncio.ensure_future(_close_all(closing, relays))
        return closing

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        name = sprite_in_host(req.url.host)
        if not name:
            return await super()._create_connection(req, traces, timeout)
        try:
            ours, relay = await open_tunnel(name, req.url.port)
        except ConnectionRefusedError as error:  # as aiohttp's connectors do, so that callers recognise a refusal
            raise aiohttp.ClientConnectorError(req.connection_key, error) from error
        self._relays.add(relay)
        relay.add_done_callback(self._relays.discard)
        _, protocol = await self._loop.create_connection(self._factory, sock=ours)
        return protocol


async def _close_all(closing: Awaitable[None], relays: list[asyncio.Task[None]]) -> None:
    for relay in relays:
        relay.cancel()
    await closing
    await asyncio.gather(*relays, return_exceptions=True)


async def open_tunnel(name: str, port: int) -> tuple[socket.socket, asyncio.Task[None]]:
    """Return our end of a connection to a sprite's port, and the task that relays until one side closes.

    Raises ConnectionRefusedError if nothing listens, TimeoutError, or ConnectionError.
    """
    http = aiohttp.ClientSession(trust_env=False, cookie_jar=aiohttp.DummyCookieJar())
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            websocket = await _open_websocket(http, name, port)
    except BaseException:
        await http.close()
        raise
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    return ours, asyncio.create_task(_relay(http, websocket, theirs), name=f"tunnel into {name}")


async def _open_websocket(http: aiohttp.ClientSession, name: str, port: int) -> aiohttp.ClientWebSocketResponse:
    url = f"{settings.KANDEV_SPRITES_URL.rstrip('/')}/v1/sprites/{name}/proxy"
    headers = {"Authorization": f"Bearer {settings.KANDEV_SPRITES_TOKEN}"}
    patience = aiohttp.ClientWSTimeout(ws_close=_CLOSE_TIMEOUT)
    try:
        websocket = await http.ws_connect(
            url, headers=headers, heartbeat=20, max_msg_size=SOCKET_MESSAGE_LIMIT, compress=0, timeout=patience
        )
    except aiohttp.WSServerHandshakeError as error:
        raise ConnectionError(f"the Sprites API refused a tunnel into {name}: HTTP {error.status}") from error
    except aiohttp.ClientError as error:
        raise ConnectionError(f"the Sprites API cannot be reached: {error}") from error
    try:
        await websocket.send_json({"host": "localhost", "port": port})
        if not _is_connected(await websocket.receive()):
            raise ConnectionRefusedError(f"nothing listens on port {port} of {name}")
    except BaseException:
        await websocket.close()
        raise
    return websocket


def _is_connected(message: aiohttp.WSMessage) -> bool:
    if message.type is not aiohttp.WSMsgType.TEXT:
        return False
    try:
        answer = orjson.loads(message.data)
    except orjson.JSONDecodeError:
        return False
    return isinstance(answer, dict) and answer.get("status") == "connected"


async def _relay(
    http: aiohttp.ClientSession, websocket: aiohttp.ClientWebSocketResponse, theirs: socket.socket
) -> None:
    """Relay bytes until either side closes, then close both."""
    ways = [asyncio.create_task(_inwards(websocket, theirs)), asyncio.create_task(_outwards(websocket, theirs))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        theirs.close()
        with contextlib.suppress(Exception):
            await websocket.close()
        await http.close()


async def _inwards(websocket: aiohttp.ClientWebSocketResponse, theirs: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while chunk := await loop.sock_recv(theirs, _CHUNK):
        await websocket.send_bytes(chunk)


async def _outwards(websocket: aiohttp.ClientWebSocketResponse, theirs: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    async for message in websocket:
        if message.type is aiohttp.WSMsgType.BINARY:
            await loop.sock_sendall(theirs, message.data)
