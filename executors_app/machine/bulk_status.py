"""Poll ``GET /status`` of many agentctls at once.

HTTP is written by hand here, because this is the hot path of a sweep.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from executors_app.machine.agentctl_answers import MAX_ANSWER, answer_too_large, check_execution, read_json
from executors_app.machine.listeners import LOCAL_HOST_HEADER, AgentctlListener
from executors_app.machine.sockets import address_family
from executors_app.wire import socket_urls
from executors_app.wire.errors import AgentctlForeign, AgentctlUnreachable, ExecutorError

_HEAD_END: Final = b"\r\n\r\n"
_CHUNK: Final = 64 << 10
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_HEAD_WITHIN: Final = 16
"""Number of chunks in which the Content-Length header is expected."""

OnError = Callable[[str, ExecutorError], None]
"""Called at once with an execution whose poll failed."""


@dataclass(frozen=True, slots=True)
class StatusTarget:
    """An agentctl to poll, and the token for it."""

    execution_id: str
    url: str
    token: str = field(repr=False)
    tls: ssl.SSLContext | None = None
    """For https; None uses the system's certificates."""
    listener: AgentctlListener | None = None
    """Proves who listens at ``url`` before the token is sent; always used for a Unix socket."""


async def poll_statuses(
    targets: Sequence[StatusTarget],
    timeout: float,
    concurrency: int,
    *,
    on_error: OnError = lambda execution_id, error: None,
) -> dict[str, dict[str, Any] | ExecutorError]:
    """Poll each target once and return its ``protocol.Status``, or the error, by execution id.

    Each target has ``timeout`` seconds of its own; at most ``concurrency`` are polled at a time.
    Errors are AgentctlUnreachable and AgentctlForeign with ``details["reason"]`` (timeout, refused, closed,
    unreachable, replaced, bad_url, not_ours, other_user, other_listener, other_execution, protocol_version, no_json,
    too_large), or AgentctlRefused.
    """
    results: dict[str, dict[str, Any] | ExecutorError] = {}
    waiting = iter(targets)
    async with asyncio.TaskGroup() as group:
        for _ in range(min(max(concurrency, 1), len(targets))):
            group.create_task(_poll_worker(waiting, timeout, results, on_error))
    return results


async def _poll_worker(
    waiting: Iterator[StatusTarget],
    timeout: float,
    results: dict[str, dict[str, Any] | ExecutorError],
    on_error: OnError,
) -> None:
    for target in waiting:
        try:
            results[target.execution_id] = await poll_status(target, timeout)
        except ExecutorError as error:
            results[target.execution_id] = error
            on_error(target.execution_id, error)


async def poll_status(target: StatusTarget, timeout: float) -> dict[str, Any]:
    """Poll one target; raises AgentctlUnreachable, AgentctlForeign, AgentctlRefused."""
    try:
        async with asyncio.timeout(timeout):
            whole = await _request_status(target)
    except TimeoutError as error:
        raise AgentctlUnreachable("agentctl did not answer in time.", reason="timeout") from error
    except ConnectionRefusedError as error:
        raise AgentctlUnreachable("Nothing is listening at agentctl's address.", reason="refused") from error
    except ConnectionError as error:
        raise _closed_error() from error
    except OSError as error:
        raise AgentctlUnreachable(f"agentctl cannot be reached: {error}", reason="unreachable") from error
    return _parse_answer(whole, target.execution_id)


async def _request_status(target: StatusTarget) -> bytes:
    listener = target.listener
    if listener is None and target.url.startswith(socket_urls.SCHEME):
        listener = AgentctlListener(target.url, None)
    if listener is not None:
        request = _encode_request(target, "", LOCAL_HOST_HEADER)
        with await listener.connect() as connection:
            return await _exchange(connection, request)
    where, port, request, context = _prepare_request(target)
    if context is None and (family := address_family(where)):
        return await _exchange_over_socket(family, where, port, request)
    return await _exchange_over_stream(where, port, request, context)


async def _exchange_over_socket(family: socket.AddressFamily, where: str, port: int, request: bytes) -> bytes:
    """Poll over a plain socket, at half the cost of a transport: no name lookup, no TLS."""
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connection:
        with contextlib.suppress(BlockingIOError):
            connection.connect((where, port))
        # The send waits for the connection and raises if that failed.
        return await _exchange(connection, request)


async def _exchange(connection: socket.socket, request: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, request)
    return await _read_answer(lambda: loop.sock_recv(connection, _CHUNK))


async def _exchange_over_stream(where: str, port: int, request: bytes, context: ssl.SSLContext | bool | None) -> bytes:
    reader, writer = await asyncio.open_connection(where, port, ssl=context)
    try:
        writer.write(request)
        return await _read_answer(lambda: reader.read(_CHUNK))
    finally:
        writer.transport.abort()


async def _read_answer(read: Callable[[], Awaitable[bytes]]) -> bytes:
    """Read an answer up to its Content-Length or the end of the stream."""
    answer, wanted, chunks = bytearray(), None, 0
    while wanted is None or len(answer) < wanted:
        chunk = await read()
        if not chunk:
            break
        answer += chunk
        chunks += 1
        if len(answer) > MAX_ANSWER:
            raise answer_too_large()
        if wanted is None and chunks < _HEAD_WITHIN:
            wanted = _content_length(bytes(answer))
    if not answer:
        raise _closed_error()
    return bytes(answer)


def _closed_error() -> AgentctlUnreachable:
    return AgentctlUnreachable("agentctl closed the connection without an answer.", reason="closed")


def _prepare_request(target: StatusTarget) -> tuple[str, int, bytes, ssl.SSLContext | bool | None]:
    """Return host, port, the request and the TLS context."""
    try:
        parts = urlsplit(target.url)
        host, port = parts.hostname, parts.port or _DEFAULT_PORTS.get(parts.scheme, 80)
    except ValueError as error:
        raise _bad_url_error() from error
    if not host or parts.scheme not in {"http", "https"}:
        raise _bad_url_error()
    request = _encode_request(target, parts.path.rstrip("/"), parts.netloc.rpartition("@")[2])
    return host, port, request, _tls_context(parts, target.tls)


def _encode_request(target: StatusTarget, path: str, host: str) -> bytes:
    """Encode the request. HTTP/1.0, so that the answer is not chunked."""
    lines = (
        f"GET {path}/status HTTP/1.0",
        f"Host: {host}",
        f"Authorization: Bearer {target.token}",
        "Accept: application/json",
    )
    try:
        request = "\r\n".join(lines).encode("ascii") + _HEAD_END
    except ValueError as error:
        raise _bad_url_error() from error
    if len(request.split(b"\r\n")) != len(lines) + 2:
        raise _bad_url_error()
    return request


def _bad_url_error() -> AgentctlUnreachable:
    return AgentctlUnreachable("agentctl's address is not a URL.", reason="bad_url")


def _tls_context(parts: SplitResult, context: ssl.SSLContext | None) -> ssl.SSLContext | bool | None:
    if parts.scheme == "https":
        return context or True
    return None


def _parse_answer(response: bytes, execution_id: str) -> dict[str, Any]:
    head, found, body = response.partition(_HEAD_END)
    parts = head.split(b" ", 2)
    if not found or not head.startswith(b"HTTP/1.") or len(parts) < 2 or not parts[1].isdigit():
        raise AgentctlForeign("What answered does not speak HTTP.", reason="no_json")
    status = read_json(int(parts[1]), body)
    check_execution(status, execution_id)
    return status


def _content_length(start: bytes) -> int | None:
    """Return the total size of the answer from its Content-Length; None if unknown."""
    head, found, _ = start.partition(_HEAD_END)
    _, named, after = head.lower().partition(b"\r\ncontent-length:")
    length = after.partition(b"\r\n")[0].strip()
    if found and named and length.isdigit():
        return len(head) + len(_HEAD_END) + int(length)
    return None
