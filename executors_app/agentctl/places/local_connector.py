"""aiohttp's way to agentctls of this machine, each proven before a request is sent.

aiohttp pools connections by the URL's host and port, and asks a connector for nothing else: so the listener, its
process included, is written into a host name that nobody can look up (RFC 6761).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import aiohttp
import orjson

from executors_app.agentctl.identity import ProcessIdentity
from executors_app.agentctl.places.listeners import Listener

_SUFFIX: Final = ".agentctl.invalid"


def url_for(listener: Listener) -> str:
    """The URL by which a ``LocalConnector`` finds a listener."""
    process = listener.process.to_json() if listener.process else None
    return f"http://{orjson.dumps([listener.url, process]).hex()}{_SUFFIX}"


class LocalConnector(aiohttp.TCPConnector):
    """Connects as ever, and to the proven agentctl where the host of the URL was made by ``url_for``."""

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        listener = _listener_of(req.url.raw_host)
        if listener is None:
            return await super()._create_connection(req, traces, timeout)
        try:
            async with asyncio.timeout(timeout.sock_connect):
                connection = await listener.connect()
        except TimeoutError:
            raise
        except OSError as error:  # as of any connector, or nobody could tell a refusal
            raise aiohttp.ClientConnectorError(req.connection_key, error) from error
        try:
            _, protocol = await self._loop.create_connection(self._factory, sock=connection)
        except BaseException:
            connection.close()
            raise
        return protocol


def _listener_of(host: str | None) -> Listener | None:
    if not host or not host.endswith(_SUFFIX):
        return None
    url, process = orjson.loads(bytes.fromhex(host.removesuffix(_SUFFIX)))
    return Listener(url, ProcessIdentity.from_json(process) if process else None)
