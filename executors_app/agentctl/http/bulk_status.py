"""Poll `GET /status` of many agentctls at once.

And judge what an HTTP answer of something that should be agentctl says. HTTP is written by hand because this is a
sweep's hot path.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import orjson

from executors_app.agentctl.http import sockets
from executors_app.agentctl.http.sockets import AgentctlListener, address_family, host_header
from executors_app.agentctl.protocol import PROTOCOL_VERSION, Code, is_supported_version
from executors_app.errors import AgentctlForeign, AgentctlRefused, AgentctlUnreachable, ExecutorError, StaleGeneration

MAX_ANSWER: Final = 64 * 1024 * 1024
NOT_OURS: Final = "not_ours"
"""The reason of an answer that takes our token for a wrong one."""
_GATEWAY_STATUSES: Final = frozenset({502, 503, 504})


def read_json(status: int, body: bytes) -> dict[str, Any]:
    """The JSON object of a good answer; raises the error that any other answer stands for."""
    if not 200 <= status < 300:
        raise error_for_status(status, body)
    answer = _parse_object(body)
    if answer is None:
        raise AgentctlForeign("What answered is not agentctl: no JSON object came.", reason="no_json")
    return answer


def check_execution(status: Mapping[str, Any], execution_id: str) -> None:
    """Alive means: it named our execution (rule 3), in words that we understand (rule 24); raises AgentctlForeign."""
    if status.get("execution_id") != execution_id:
        raise AgentctlForeign("Another execution's agentctl answered.", reason="other_execution")
    version = status.get("version", PROTOCOL_VERSION)
    if not is_supported_version(version):
        message = f"This agentctl speaks version {version!r} of our protocol, and we speak {PROTOCOL_VERSION}."
        raise AgentctlForeign(message, reason="protocol_version")


def error_for_status(status: int, body: bytes) -> ExecutorError:
    """The error that an answer other than 2xx stands for."""
    if status in {401, 403}:
        return AgentctlForeign(f"agentctl does not know us (HTTP {status}).", reason=NOT_OURS, status=status)
    answer = _parse_object(body)
    code = answer.get("code") if answer else None
    if answer is None or not isinstance(code, str):
        if status in _GATEWAY_STATUSES:
            return AgentctlUnreachable(f"Something between us and agentctl failed (HTTP {status}).", reason="gateway")
        return AgentctlForeign(f"What answered is not agentctl (HTTP {status}).", reason="no_json", status=status)
    if code == Code.INSTANCE_UNREACHABLE:
        return AgentctlUnreachable(str(answer.get("message") or ""), reason="gateway")
    kind = StaleGeneration if code == Code.STALE_GENERATION else AgentctlRefused
    return kind(str(answer.get("message") or ""), status=status, refusal=code, answer=answer)


def answer_too_large() -> AgentctlForeign:
    """The error of an answer above ``MAX_ANSWER``."""
    return AgentctlForeign("What answered sends more than agentctl would.", reason="too_large")


def _parse_object(body: bytes) -> dict[str, Any] | None:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return answer if isinstance(answer, dict) else None


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
    listener: AgentctlListener | None = None
    """Proves who listens at ``url`` before the token is sent; a Unix socket is always proven."""


OnError = Callable[[str, ExecutorError], None]
"""Told of an execution whose status did not come, at once."""


async def poll_statuses(
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
    """Ask one; raises AgentctlUnreachable, AgentctlForeign, AgentctlRefused."""
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
    if listener is None and target.url.startswith(sockets.SCHEME):
        listener = AgentctlListener(target.url, None)
    if listener is not None:
        request = _encode_request(target, "", host_header(listener))
        with await listener.connect() as connection:
            return await _exchange(connection, request)
    where, port, request, context = _prepare_request(target)
    if context is None and (family := address_family(where)):
        return await _exchange_over_socket(family, where, port, request)
    return await _exchange_over_stream(where, port, request, context)


async def _exchange_over_socket(family: socket.AddressFamily, where: str, port: int, request: bytes) -> bytes:
    """The usual case, at half the cost of a transport: no name to look up, no TLS."""
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connection:
        with contextlib.suppress(BlockingIOError):
            connection.connect((where, port))
        # the send waits for the connection, and tells how that went
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
    """The answer up to its told length or the end of the stream."""
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
    """Host, port, the bytes to send and the TLS to use."""
    try:
        parts = urlsplit(target.url)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise _bad_url_error() from error
    if not host or parts.scheme not in {"http", "https"}:
        raise _bad_url_error()
    request = _encode_request(target, parts.path.rstrip("/"), parts.netloc.rpartition("@")[2])
    return host, port, request, _tls_context(parts, target.tls)


def _encode_request(target: StatusTarget, path: str, host: str) -> bytes:
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
        raise _bad_url_error() from error
    if len(request.split(b"\r\n")) != len(lines) + 2:
        raise _bad_url_error()
    return request


def _bad_url_error() -> AgentctlUnreachable:
    return AgentctlUnreachable("agentctl's address is not a URL.", reason="bad_url")


def _tls_context(parts: SplitResult, context: ssl.SSLContext | None) -> ssl.SSLContext | bool | None:
    return (context or True) if parts.scheme == "https" else None


def _parse_answer(whole: bytes, execution_id: str) -> dict[str, Any]:
    head, found, body = whole.partition(_HEAD_END)
    words = head.split(b" ", 2)
    if not found or not head.startswith(b"HTTP/1.") or len(words) < 2 or not words[1].isdigit():
        raise AgentctlForeign("What answered does not speak HTTP.", reason="no_json")
    status = read_json(int(words[1]), body)
    check_execution(status, execution_id)
    return status


def _content_length(start: bytes) -> int | None:
    """Size of the whole answer as its head tells it; None while unknown or not told."""
    head, found, _ = start.partition(_HEAD_END)
    _, named, after = head.lower().partition(b"\r\ncontent-length:")
    length = after.partition(b"\r\n")[0].strip()
    return len(head) + len(_HEAD_END) + int(length) if found and named and length.isdigit() else None
