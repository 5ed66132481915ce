"""``GET /status`` of many agentctls at once: the hot path of a sweep, so HTTP is spoken by hand.

One connection, one answer, one timer each; nothing is shared, so whoever refuses, hangs or lies
costs the others nothing but a place among ``concurrency``.
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

from executors_app.agentctl import unix_socket
from executors_app.agentctl.places.answers import MAX_ANSWER, check_execution, read_json, too_large
from executors_app.agentctl.places.listeners import Listener, host_header_of, numeric
from executors_app.errors import AgentctlForeign, AgentctlUnreachable, ExecutorError

_HEAD_END: Final = b"\r\n\r\n"
_CHUNK: Final = 64 << 10
_HEAD_WITHIN: Final = 16
"""Chunks in which the told length is looked for."""


@dataclass(frozen=True, slots=True)
class StatusTarget:
    """Whose status is wanted, and with which proof that we may ask."""

    execution_id: str
    url: str
    token: str = field(repr=False)
    tls: ssl.SSLContext | None = None
    """For https; None: the machine's certificates."""
    listener: Listener | None = None
    """Proves who listens at ``url`` before the token is sent; a Unix socket is always proven."""


OnError = Callable[[str, ExecutorError], None]
"""Told of an execution whose status did not come, at once."""


async def observe_statuses(
    targets: Sequence[StatusTarget],
    timeout: float,
    concurrency: int,
    *,
    on_error: OnError = lambda execution_id, error: None,
) -> dict[str, dict[str, Any] | ExecutorError]:
    """Ask each target once: by execution id its ``protocol.Status``, or the error that came instead.

    Each has ``timeout`` seconds of its own, and no more than ``concurrency`` are asked at a time.
    Errors are AgentctlUnreachable and AgentctlForeign with ``details["reason"]`` (timeout, refused,
    closed, unreachable, replaced, bad_url, not_ours, other_user, other_listener, other_execution, protocol_version,
    no_json, too_large), or AgentctlRefused.
    """
    results: dict[str, dict[str, Any] | ExecutorError] = {}
    waiting = iter(targets)
    async with asyncio.TaskGroup() as group:
        for _ in range(min(max(concurrency, 1), len(targets))):
            group.create_task(_ask_in_turn(waiting, timeout, results, on_error))
    return results


async def _ask_in_turn(
    waiting: Iterator[StatusTarget],
    timeout: float,
    results: dict[str, dict[str, Any] | ExecutorError],
    on_error: OnError,
) -> None:
    for target in waiting:
        try:
            results[target.execution_id] = await ask_status(target, timeout)
        except ExecutorError as error:
            results[target.execution_id] = error
            on_error(target.execution_id, error)


async def ask_status(target: StatusTarget, timeout: float) -> dict[str, Any]:
    """Ask one; raises AgentctlUnreachable, AgentctlForeign, AgentctlRefused."""
    try:
        async with asyncio.timeout(timeout):
            whole = await _answer_to(target)
    except TimeoutError as error:
        raise AgentctlUnreachable("agentctl did not answer in time.", reason="timeout") from error
    except ConnectionRefusedError as error:
        raise AgentctlUnreachable("Nothing listens where agentctl was.", reason="refused") from error
    except ConnectionError as error:
        raise _closed() from error
    except OSError as error:
        raise AgentctlUnreachable(f"agentctl cannot be reached: {error}", reason="unreachable") from error
    return _judged(whole, target.execution_id)


async def _answer_to(target: StatusTarget) -> bytes:
    listener = target.listener
    if listener is None and target.url.startswith(unix_socket.SCHEME):
        listener = Listener(target.url, None)
    if listener is not None:
        request = _bytes(target, "", host_header_of(listener))
        with await listener.connect() as connection:
            return await _exchange(connection, request)
    where, port, request, context = _request(target)
    if context is None and (family := numeric(where)):
        return await _over_socket(family, where, port, request)
    return await _over_stream(where, port, request, context)


async def _over_socket(family: socket.AddressFamily, where: str, port: int, request: bytes) -> bytes:
    """The usual case, at half the cost of a transport: no name to look up, no TLS."""
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connection:
        with contextlib.suppress(BlockingIOError):
            connection.connect((where, port))
        # the send waits for the connection, and tells how that went
        return await _exchange(connection, request)


async def _exchange(connection: socket.socket, request: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, request)
    return await _read_whole(lambda: loop.sock_recv(connection, _CHUNK))


async def _over_stream(where: str, port: int, request: bytes, context: ssl.SSLContext | bool | None) -> bytes:
    reader, writer = await asyncio.open_connection(where, port, ssl=context)
    try:
        writer.write(request)
        return await _read_whole(lambda: reader.read(_CHUNK))
    finally:
        writer.transport.abort()


async def _read_whole(read: Callable[[], Awaitable[bytes]]) -> bytes:
    """The answer up to its told length or the end of the stream."""
    answer, wanted, chunks = bytearray(), None, 0
    while wanted is None or len(answer) < wanted:
        chunk = await read()
        if not chunk:
            break
        answer += chunk
        chunks += 1
        if len(answer) > MAX_ANSWER:
            raise too_large()
        if wanted is None and chunks < _HEAD_WITHIN:
            wanted = _told_size(bytes(answer))
    if not answer:
        raise _closed()
    return bytes(answer)


def _closed() -> AgentctlUnreachable:
    return AgentctlUnreachable("agentctl closed the connection without an answer.", reason="closed")


def _request(target: StatusTarget) -> tuple[str, int, bytes, ssl.SSLContext | bool | None]:
    """Host, port, the bytes to send and the TLS to use."""
    try:
        parts = urlsplit(target.url)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise _bad_url() from error
    if not host or parts.scheme not in {"http", "https"}:
        raise _bad_url()
    request = _bytes(target, parts.path.rstrip("/"), parts.netloc.rpartition("@")[2])
    return host, port, request, _tls(parts, target.tls)


def _bytes(target: StatusTarget, path: str, host: str) -> bytes:
    """The request. HTTP/1.0: nobody may answer in chunks."""
    lines = (
        f"GET {path}/status HTTP/1.0",
        f"Host: {host}",
        f"Authorization: Bearer {target.token}",
        "Accept: application/json",
    )
    try:
        request = "\r\n".join(lines).encode("ascii") + _HEAD_END
    except ValueError as error:
        raise _bad_url() from error
    if len(request.split(b"\r\n")) != len(lines) + 2:
        raise _bad_url()
    return request


def _bad_url() -> AgentctlUnreachable:
    return AgentctlUnreachable("The address of agentctl is no URL.", reason="bad_url")


def _tls(parts: SplitResult, context: ssl.SSLContext | None) -> ssl.SSLContext | bool | None:
    return (context or True) if parts.scheme == "https" else None


def _judged(whole: bytes, execution_id: str) -> dict[str, Any]:
    head, found, body = whole.partition(_HEAD_END)
    words = head.split(b" ", 2)
    if not found or not head.startswith(b"HTTP/1.") or len(words) < 2 or not words[1].isdigit():
        raise AgentctlForeign("What answered does not speak HTTP.", reason="no_json")
    status = read_json(int(words[1]), body)
    check_execution(status, execution_id)
    return status


def _told_size(start: bytes) -> int | None:
    """Size of the whole answer as its head tells it; None while unknown or not told."""
    head, found, _ = start.partition(_HEAD_END)
    _, named, after = head.lower().partition(b"\r\ncontent-length:")
    length = after.partition(b"\r\n")[0].strip()
    return len(head) + len(_HEAD_END) + int(length) if found and named and length.isdigit() else None
