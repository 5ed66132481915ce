"""``GET /status`` of many agentctls at once: the hot path of a sweep, so HTTP is spoken by hand.

One connection, one answer, one timer each; nothing is shared, so whoever refuses, hangs or lies
costs the others nothing but a place among ``concurrency``.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from executors_app.answers import MAX_ANSWER, check_execution, read_json, too_large
from executors_app.errors import AgentctlForeign, AgentctlUnreachable, ExecutorError

_HEAD_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class StatusTarget:
    """Whose status is wanted, and with which proof that we may ask."""

    execution_id: str
    url: str
    token: str = field(repr=False)
    tls: ssl.SSLContext | None = None
    """For https; None: the machine's certificates."""


async def observe_statuses(
    targets: Sequence[StatusTarget], timeout: float, concurrency: int
) -> dict[str, dict[str, Any] | ExecutorError]:
    """Ask each target once: by execution id its ``protocol.Status``, or the error that came instead.

    Each has ``timeout`` seconds of its own, and no more than ``concurrency`` are asked at a time.
    Errors are AgentctlUnreachable and AgentctlForeign with ``details["reason"]`` (timeout, refused,
    closed, unreachable, bad_url, not_ours, other_execution, no_json, too_large), or AgentctlRefused.
    """
    results: dict[str, dict[str, Any] | ExecutorError] = {}
    waiting = iter(targets)
    async with asyncio.TaskGroup() as group:
        for _ in range(min(max(concurrency, 1), len(targets))):
            group.create_task(_ask_in_turn(waiting, timeout, results))
    return results


async def _ask_in_turn(
    waiting: Iterator[StatusTarget], timeout: float, results: dict[str, dict[str, Any] | ExecutorError]
) -> None:
    for target in waiting:
        try:
            results[target.execution_id] = await ask_status(target, timeout)
        except ExecutorError as error:
            results[target.execution_id] = error


async def ask_status(target: StatusTarget, timeout: float) -> dict[str, Any]:
    """Ask one; raises AgentctlUnreachable, AgentctlForeign, AgentctlRefused."""
    where, port, request, context = _request(target)
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bytes] = loop.create_future()
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(timeout):
            connect = loop.create_connection(lambda: _Exchange(request, answer), where, port, ssl=context)
            transport, _ = await connect
            whole = await answer
    except TimeoutError as error:
        raise AgentctlUnreachable("agentctl did not answer in time.", reason="timeout") from error
    except ConnectionRefusedError as error:
        raise AgentctlUnreachable("Nothing listens where agentctl was.", reason="refused") from error
    except OSError as error:
        raise AgentctlUnreachable(f"agentctl cannot be reached: {error}", reason="unreachable") from error
    finally:
        answer.cancel()
        if transport is not None:
            transport.abort()
    return _judged(whole, target.execution_id)


def _request(target: StatusTarget) -> tuple[str, int, bytes, ssl.SSLContext | bool | None]:
    """Host, port, the bytes to send and the TLS to use. HTTP/1.0: nobody may answer in chunks."""
    try:
        parts = urlsplit(target.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        path = f"{parts.path.rstrip('/')}/status"
        lines = (
            f"GET {path} HTTP/1.0",
            f"Host: {parts.netloc.rpartition('@')[2]}",
            f"Authorization: Bearer {target.token}",
            "Accept: application/json",
        )
        request = "\r\n".join(lines).encode("ascii") + _HEAD_END
    except ValueError as error:
        raise AgentctlUnreachable("The address of agentctl is no URL.", reason="bad_url") from error
    if not parts.hostname or parts.scheme not in {"http", "https"} or len(request.split(b"\r\n")) != len(lines) + 2:
        raise AgentctlUnreachable("The address of agentctl is no URL.", reason="bad_url")
    return parts.hostname, port, request, _tls(parts, target.tls)


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


class _Exchange(asyncio.Protocol):
    """Sends the request and keeps what comes back, up to the told length or the end of the stream."""

    def __init__(self, request: bytes, answer: asyncio.Future[bytes]):
        self._request = request
        self._answer = answer
        self._parts: list[bytes] = []
        self._size = 0
        self._wanted: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send at once."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  (for the type checker)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Collect; the answer is whole when the told length is there."""
        self._parts.append(data)
        self._size += len(data)
        if self._size > MAX_ANSWER:
            self._fail(too_large())
        elif self._wanted is None:
            self._wanted = _told_size(b"".join(self._parts)) if len(self._parts) < 16 else None
        if self._wanted is not None and self._size >= self._wanted:
            self._finish()

    def eof_received(self) -> None:
        """The far end is done: what came is the answer."""
        self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        """Say so if that was before the answer."""
        if self._size == 0 or exc is not None:
            self._fail(AgentctlUnreachable("agentctl closed the connection without an answer.", reason="closed"))
        self._finish()

    def _finish(self) -> None:
        if self._size == 0:
            self._fail(AgentctlUnreachable("agentctl closed the connection without an answer.", reason="closed"))
        elif not self._answer.done():
            self._answer.set_result(b"".join(self._parts))

    def _fail(self, error: ExecutorError) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)


def _told_size(start: bytes) -> int | None:
    """Size of the whole answer as its head tells it; None while unknown or not told."""
    head, found, _ = start.partition(_HEAD_END)
    _, named, after = head.lower().partition(b"\r\ncontent-length:")
    length = after.partition(b"\r\n")[0].strip()
    return len(head) + len(_HEAD_END) + int(length) if found and named and length.isdigit() else None
