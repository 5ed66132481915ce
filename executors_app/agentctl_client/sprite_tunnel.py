"""TCP tunnels into sprites through the organisation's API: agentctl listens only on the sprite's own loopback.

``WSS /v1/sprites/{name}/proxy`` (https://sprites.dev/api/sprites/proxy): a JSON message names host and port, another
answers, and from then on binary messages are the bytes of the connection. The organisation's token goes only to the
API. A sprite's public URL is not used: it requires that token in the header that agentctl uses for its own.
"""

from __future__ import annotations

from typing import Final

import aiohttp
import orjson
from django.conf import settings

from executors_app.wire.protocol import SOCKET_MESSAGE_LIMIT

SUFFIX: Final = ".sprite.invalid"
"""Suffix of the host in a sprite's agentctl URL; such names never resolve (RFC 6761)."""
_CLOSE_TIMEOUT: Final = 2.0


def sprite_in_host(host: str | None) -> str:
    """Return the sprite that an agentctl URL's host names; empty if it names none."""
    if host and host.endswith(SUFFIX):
        return host.removesuffix(SUFFIX)
    return ""


class SpriteTunnel:
    """An open connection to a port of a sprite."""

    def __init__(self, http: aiohttp.ClientSession, websocket: aiohttp.ClientWebSocketResponse):
        self._http, self.websocket = http, websocket

    async def send(self, chunk: bytes) -> None:
        """Send bytes to the port."""
        await self.websocket.send_bytes(chunk)

    def received(self, message: aiohttp.WSMessage) -> bytes:
        """Return the bytes from the port in a message."""
        if message.type is aiohttp.WSMsgType.BINARY:
            return bytes(message.data)
        return b""

    async def close(self) -> None:
        """Close the connection."""
        try:
            await self.websocket.close()
        finally:
            await self._http.close()


async def open_sprite_tunnel(name: str, port: int) -> SpriteTunnel:
    """Open a connection to a port of a sprite. Raises ConnectionRefusedError if nothing listens, ConnectionError."""
    http = aiohttp.ClientSession(trust_env=False, cookie_jar=aiohttp.DummyCookieJar())
    try:
        return SpriteTunnel(http, await _open_websocket(http, name, port))
    except BaseException:
        await http.close()
        raise


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
