"""Prove who listens at an agentctl's address on this machine: its token is sent to no one else."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson
from aiohttp.connector import NEEDS_CLEANUP_CLOSED

from executors_app.machine.process import identity
from executors_app.machine.process.identity import ProcessIdentity
from executors_app.machine.sockets import connect_unix, peer_credentials
from executors_app.wire.errors import AgentctlForeign, AgentctlUnreachable
from executors_app.wire.socket_urls import unix_path

CLEANS_UP_CLOSED: Final = NEEDS_CLEANUP_CLOSED and sys.version_info >= (3, 11, 4)
"""What a connector needs: otherwise a TLS connection whose peer sent no close notification would outlive it.

Older versions of Python 3.11 fail when such a connection is aborted; there it lives until its peer closes it.
"""
LOCAL_HOST_HEADER: Final = "localhost"
"""The Host header that an agentctl on this machine accepts."""
_BAD_URL: Final = "agentctl's address is not a Unix socket."

_SUFFIX: Final = ".agentctl.invalid"


@dataclass(frozen=True, slots=True)
class AgentctlListener:
    """The address of an agentctl on this machine, and its process."""

    url: str
    """``unix:/path``; anything else is not an address of an agentctl on this machine."""
    process: ProcessIdentity | None
    """As recorded at its launch; None if not recorded yet."""

    async def connect(self) -> socket.socket:
        """Return a non-blocking connection to our agentctl, and to no one else.

        Raises AgentctlForeign if another process listens, AgentctlUnreachable if a successor does or the URL is
        invalid, and OSError.
        """
        try:
            path = unix_path(self.url)
        except ValueError as error:
            raise AgentctlUnreachable(_BAD_URL, reason="bad_url") from error
        if path is None:
            raise AgentctlUnreachable(_BAD_URL, reason="bad_url")
        connection = await connect_unix(path)
        try:
            self._prove_peer(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prove_peer(self, connection: socket.socket) -> None:
        peer = peer_credentials(connection)
        if peer.uid != os.geteuid():
            raise AgentctlForeign("Another user listens where agentctl was.", reason="other_user")
        if self.process is None or not identity.is_on_this_host(self.process):
            return  # of another boot or namespace: its pid has no meaning here
        if peer.pid != self.process.pid or not identity.is_alive(self.process):
            # It runs as our user, in our directory: a later agentctl of the same execution.
            raise AgentctlUnreachable("The agentctl that was recorded has ended.", reason="replaced")


def connector_url(listener: AgentctlListener) -> str:
    """Return the URL that makes a ``LocalConnector`` connect to a listener."""
    process = None
    if listener.process:
        process = listener.process.to_json()
    return f"http://{orjson.dumps([listener.url, process]).hex()}{_SUFFIX}"


class LocalConnector(aiohttp.TCPConnector):
    """A TCP connector that connects to a proven agentctl for the URLs of ``connector_url``."""

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        listener = _listener_in(req.url.raw_host)
        if listener is None:
            return await super()._create_connection(req, traces, timeout)
        try:
            async with asyncio.timeout(timeout.sock_connect):
                connection = await listener.connect()
        except TimeoutError:
            raise
        except OSError as error:  # as aiohttp's own connectors do, so that callers recognise a refused connection
            raise aiohttp.ClientConnectorError(req.connection_key, error) from error
        try:
            _, protocol = await self._loop.create_connection(self._factory, sock=connection)
        except BaseException:
            connection.close()
            raise
        return protocol


def _listener_in(host: str | None) -> AgentctlListener | None:
    if not host or not host.endswith(_SUFFIX):
        return None
    url, process = orjson.loads(bytes.fromhex(host.removesuffix(_SUFFIX)))
    if not process:
        return AgentctlListener(url, None)
    return AgentctlListener(url, ProcessIdentity.from_json(process))
