"""Connections of the client that go through a tunnel: into a sprite, or into a Pod of a cluster.

The host of the URL names the place; such hosts never resolve.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import aiohttp

from executors_app.agentctl_client.pod_tunnel import open_pod_tunnel, pod_in_host
from executors_app.agentctl_client.sprite_tunnel import open_sprite_tunnel, sprite_in_host
from executors_app.machine.listeners import LocalConnector

_CHUNK: Final = 64 << 10
_CONNECT_TIMEOUT: Final = 20.0
"""Seconds; a cold sprite takes one or two."""


class Tunnel(Protocol):
    """An open connection to a port elsewhere, over a WebSocket."""

    websocket: aiohttp.ClientWebSocketResponse

    async def send(self, chunk: bytes) -> None:
        """Send bytes to the port."""
        ...

    def received(self, message: aiohttp.WSMessage) -> bytes:
        """Return the bytes from the port in a message; raises ConnectionError if the port reported an error."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


def is_tunnelled(host: str | None) -> bool:
    """Whether the host of an agentctl URL is reached through a tunnel."""
    return bool(sprite_in_host(host)) or pod_in_host(host) is not None


def tunnel_host_header(url: str) -> dict[str, str]:
    """Return the Host header for agentctl, which accepts only names of its own loopback."""
    try:
        parts = urlsplit(url)
        if is_tunnelled(parts.hostname):
            return {"Host": f"localhost:{parts.port}"}
        return {}
    except ValueError:
        return {}


class TunnelConnector(LocalConnector):
    """A connector that opens a tunnel if the URL's host names a sprite or a Pod."""

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
        if not is_tunnelled(req.url.host):
            return await super()._create_connection(req, traces, timeout)
        try:
            ours, relay = await open_tunnel(req.url.host, req.url.port)
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


async def open_tunnel(host: str, port: int) -> tuple[socket.socket, asyncio.Task[None]]:
    """Return our end of a connection to a port elsewhere, and the task that relays until one side closes.

    ``host`` is a URL's host that is tunnelled. Raises ConnectionRefusedError if nothing listens, TimeoutError, or
    ConnectionError.
    """
    async with asyncio.timeout(_CONNECT_TIMEOUT):
        tunnel = await _open(host, port)
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    relay = asyncio.create_task(_relay(tunnel, theirs), name=f"tunnel into {host}")
    try:
        # It starts before anybody can cancel it: a task that never ran would close neither end.
        await asyncio.sleep(0)
    except BaseException:
        relay.cancel()
        ours.close()
        raise
    return ours, relay


async def _open(host: str, port: int) -> Tunnel:
    pod = pod_in_host(host)
    if pod is not None:
        return await open_pod_tunnel(pod, port)
    return await open_sprite_tunnel(sprite_in_host(host), port)


async def _relay(tunnel: Tunnel, theirs: socket.socket) -> None:
    """Relay bytes until either side closes, then close both."""
    ways = [asyncio.create_task(_inwards(tunnel, theirs)), asyncio.create_task(_outwards(tunnel, theirs))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        try:
            await asyncio.gather(*ways, return_exceptions=True)
        finally:
            # Also if we are cancelled while the relay is already ending.
            theirs.close()
            with contextlib.suppress(Exception):
                await tunnel.close()


async def _inwards(tunnel: Tunnel, theirs: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while chunk := await loop.sock_recv(theirs, _CHUNK):
        await tunnel.send(chunk)


async def _outwards(tunnel: Tunnel, theirs: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    async for message in tunnel.websocket:
        if chunk := tunnel.received(message):
            await loop.sock_sendall(theirs, chunk)
