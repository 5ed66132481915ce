"""HTTP and WebSocket calls to an agentctl or a host daemon: each returns one valid answer or raises one error.

Never redirected, never through a proxy, no cookies, and no answer above 64 MiB.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from io import BytesIO
from typing import IO, Any, Final, NoReturn

import aiohttp
import orjson
from aiohttp.connector import NEEDS_CLEANUP_CLOSED

from executors_app.agentctl_client.sprite_tunnel import TunnelConnector, tunnel_host_header
from executors_app.machine.agentctl_answers import MAX_ANSWER, answer_too_large, error_for_status, read_json
from executors_app.machine.listeners import LOCAL_HOST_HEADER, AgentctlListener, connector_url
from executors_app.wire.errors import (
    AgentctlForeign,
    AgentctlRefused,
    AgentctlUnreachable,
    ExecutorError,
    StaleGeneration,
)
from executors_app.wire.protocol import SOCKET_MESSAGE_LIMIT, Code

DEFAULT_TIMEOUT: Final = 30.0
_HEARTBEAT_INTERVAL: Final = 20.0
_CLOSE_TIMEOUT: Final = aiohttp.ClientWSTimeout(ws_close=0.5)
"""Short: a frozen agentctl never confirms the close, and closing a stream must not wait for it."""
_FINGERPRINT_BYTES: Final = 32
_CLEANS_UP_CLOSED: Final = NEEDS_CLEANUP_CLOSED and sys.version_info >= (3, 11, 4)
"""Otherwise a TLS connection whose peer sent no close notification would outlive the pool.

Older versions of Python 3.11 fail when such a connection is aborted; there it lives until its peer closes it.
"""


def open_connection_pool() -> aiohttp.ClientSession:
    """Return one connection pool for many clients of one event loop; the caller closes it."""
    tracing = aiohttp.TraceConfig()
    tracing.on_request_redirect.append(_refuse_redirect)
    return aiohttp.ClientSession(
        connector=TunnelConnector(limit=0, enable_cleanup_closed=_CLEANS_UP_CLOSED),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        trace_configs=[tracing],
        trust_env=False,
    )


async def _refuse_redirect(*_: Any) -> NoReturn:
    raise AgentctlForeign("The server that answered is not agentctl: it sent a redirect.", reason="redirect")


def tls_trust(config: Mapping[str, Any]) -> aiohttp.Fingerprint | bool:
    """Return the certificate check for an executor's https address: the pinned certificate, or the system's trust.

    An invalid pin matches no certificate, so that it never weakens the check.
    """
    pin = config.get("fingerprint")
    if not pin:
        return True
    try:
        return aiohttp.Fingerprint(bytes.fromhex(str(pin).lower().removeprefix("sha256:").replace(":", "")))
    except ValueError:
        return aiohttp.Fingerprint(bytes(_FINGERPRINT_BYTES))


class HttpClient:
    """Calls to one address with one set of headers.

    Every call may raise AgentctlUnreachable (no answer: the request may or may not have been carried out, so repeat
    it), AgentctlForeign (not ours), StaleGeneration, or AgentctlRefused with the other end's own ``refusal``. Without
    ``http``, every call opens its own connection. An ``AgentctlListener`` is proven before anything is sent to it.
    """

    def __init__(
        self,
        address: str | AgentctlListener,
        headers: Mapping[str, str],
        *,
        trust: aiohttp.Fingerprint | bool = True,
        http: aiohttp.ClientSession | None = None,
    ):
        if isinstance(address, AgentctlListener):
            self._url = connector_url(address)
            self._headers = {**headers, "Host": LOCAL_HOST_HEADER}
        else:
            self._url = address.rstrip("/")
            self._headers = {**headers, **tunnel_host_header(address)}
        self._trust = trust
        self._http = http

    @asynccontextmanager
    async def socket(self, path: str, params: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket."""
        async with self._pool() as http:
            try:
                async with asyncio.timeout(DEFAULT_TIMEOUT):
                    socket = await http.ws_connect(
                        self._url + path,
                        params=params,
                        headers=self._headers,
                        ssl=self._trust,
                        heartbeat=_HEARTBEAT_INTERVAL,
                        timeout=_CLOSE_TIMEOUT,
                        max_msg_size=SOCKET_MESSAGE_LIMIT,
                        compress=0,
                    )
            except aiohttp.WSServerHandshakeError as error:
                raise _upgrade_error(path, error.status) from error
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise _unreachable_error(error) from error
            async with socket:
                yield socket

    async def get(
        self, path: str, params: Mapping[str, str] | None = None, *, timeout: float = DEFAULT_TIMEOUT
    ) -> dict[str, Any]:
        """Return the JSON object of a successful answer."""
        return read_json(200, await self.call("GET", path, params=params, timeout=timeout))

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        params: Mapping[str, str] | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        method: str = "POST",
    ) -> dict[str, Any]:
        """Send a JSON object and return the JSON object of a successful answer."""
        headers = {"Content-Type": "application/json"}
        data = orjson.dumps(dict(body))
        return read_json(200, await self.call(method, path, params=params, data=data, headers=headers, timeout=timeout))

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> bytes:
        """Return the body of a successful answer."""
        headers = self._headers | dict(headers or {})
        try:
            async with asyncio.timeout(timeout), self._pool() as http:
                sent = None
                if data is not None:
                    sent = BytesIO(data)  # as a file, because aiohttp warns about large bytes objects
                call = http.request(
                    method,
                    self._url + path,
                    params=params,
                    data=sent,
                    headers=headers,
                    allow_redirects=False,
                    ssl=self._trust,
                )
                async with call as response:
                    body = await _read_capped(response)
                    status = response.status
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _unreachable_error(error) from error
        if not 200 <= status < 300:
            raise error_for_status(status, body)
        return body

    async def download(
        self, path: str, body: Mapping[str, Any], into: IO[bytes], *, limit: int, timeout: float
    ) -> dict[str, Any]:
        """Post a JSON object; return the first line of the answer and write the rest to ``into``.

        Raises AgentctlForeign for more than ``limit`` bytes.
        """
        headers = self._headers | {"Content-Type": "application/json"}
        try:
            async with asyncio.timeout(timeout), self._pool() as http:
                call = http.post(
                    self._url + path,
                    data=BytesIO(orjson.dumps(dict(body))),
                    headers=headers,
                    allow_redirects=False,
                    ssl=self._trust,
                )
                async with call as response:
                    if not 200 <= response.status < 300:
                        raise error_for_status(response.status, await _read_capped(response))
                    return await _read_json_and_body(response, into, limit)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _unreachable_error(error) from error

    def _pool(self) -> Any:
        if self._http is None:
            return open_connection_pool()
        return nullcontext(self._http)


async def _read_capped(response: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > MAX_ANSWER:
            raise answer_too_large()
        parts.append(part)
    return b"".join(parts)


async def _read_json_and_body(response: aiohttp.ClientResponse, into: IO[bytes], limit: int) -> dict[str, Any]:
    """Return the object of the first line and write the rest to the file."""
    head, size = b"", 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > limit or len(head) > MAX_ANSWER:
            raise answer_too_large()
        if head.endswith(b"\n"):
            await asyncio.to_thread(into.write, part)
            continue
        line, end, rest = part.partition(b"\n")
        head += line + end
        await asyncio.to_thread(into.write, rest)
    return read_json(200, head)


def _unreachable_error(error: Exception) -> ExecutorError:
    """Return the error for a call without an answer, with the reason that a sweep would record."""
    if isinstance(error, (aiohttp.ClientSSLError, aiohttp.ServerFingerprintMismatch)):
        said = "The server's certificate is not the one that is trusted."
        return AgentctlForeign(said, reason="certificate", for_staff=_certificate_hint(error))
    cause = getattr(error, "os_error", None) or error
    if isinstance(cause, TimeoutError):
        return AgentctlUnreachable("agentctl did not answer in time.", reason="timeout")
    if isinstance(cause, ConnectionRefusedError):
        return AgentctlUnreachable("Nothing is listening at agentctl's address.", reason="refused")
    if isinstance(cause, aiohttp.InvalidURL):
        return AgentctlUnreachable("agentctl's address is not a URL.", reason="bad_url")
    if isinstance(cause, (aiohttp.ServerDisconnectedError, ConnectionError)):
        return AgentctlUnreachable("agentctl closed the connection without an answer.", reason="closed")
    return AgentctlUnreachable(f"agentctl cannot be reached: {type(cause).__name__}", reason="unreachable")


def _certificate_hint(error: aiohttp.ClientError) -> str:
    """Return what operators need to pin the right certificate or to notice an interception."""
    if isinstance(error, aiohttp.ServerFingerprintMismatch):
        return f"It presented sha256:{error.got.hex()}, but only sha256:{error.expected.hex()} is trusted."
    return f"{getattr(error, 'certificate_error', None) or getattr(error, 'os_error', None) or error}."


def _upgrade_error(path: str, status: int) -> Exception:
    """Return the error for a WebSocket that was not opened; aiohttp does not provide the answer's body."""
    if status == 409 and path == "/events":
        return StaleGeneration(status=status, refusal=Code.STALE_GENERATION.value)
    refusals = {400: Code.VALIDATION_ERROR, 404: Code.NOT_FOUND, 409: Code.CONFLICT, 500: Code.INTERNAL_ERROR}
    if status in refusals:
        return AgentctlRefused(f"agentctl refused to open {path}.", status=status, refusal=refusals[status].value)
    return error_for_status(status, b"")
