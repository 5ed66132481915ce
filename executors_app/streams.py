"""WebSocket streams of an agentctl as the control plane reads them.

Journal lines in batches, and the bytes of a shell.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any

import aiohttp
import orjson

from executors_app.agentctl.journal.line_format import NUL, UNREADABLE, is_line, parse_line
from executors_app.agentctl.protocol import CLOSE_OVERTAKEN, CLOSE_STALE_GENERATION, Code
from executors_app.errors import AgentctlUnreachable, StaleGeneration

_SHOWN_LIMIT = 200
"""Bytes of a line that cannot be read."""


class EventStream:
    """Batches of journal lines, one for each frame; a truncated notice is a batch of its own.

    The iteration ends when agentctl closes the stream in good order, and raises StaleGeneration
    when a newer generation has taken over, AgentctlUnreachable when the connection is lost.
    A line that cannot be read comes as one of the kind ``journal.line_format.UNREADABLE``.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse):
        self._socket = socket

    def __aiter__(self) -> AsyncIterator[list[dict[str, Any]]]:
        return self

    async def __anext__(self) -> list[dict[str, Any]]:
        message = await self._socket.receive()
        if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            return parse_frame(message.data)
        code = self._socket.close_code
        if code == CLOSE_STALE_GENERATION:
            newer = "A newer generation reads these events."
            raise StaleGeneration(newer, status=409, refusal=Code.STALE_GENERATION.value)
        if code in (aiohttp.WSCloseCode.OK, aiohttp.WSCloseCode.GOING_AWAY):
            raise StopAsyncIteration
        raise AgentctlUnreachable("The event stream of agentctl broke off.", reason="closed", close_code=code)

    async def ack(self, seq: int) -> None:
        """Let agentctl drop what is stored up to ``seq``; raises AgentctlUnreachable."""
        try:
            await self._socket.send_str(f'{{"ack":{seq}}}')
        except (aiohttp.ClientError, ConnectionError) as error:
            raise AgentctlUnreachable("The event stream of agentctl broke off.", reason="closed") from error


def parse_frame(frame: str | bytes) -> list[dict[str, Any]]:
    """The lines of a frame; a line holds no raw line end, so all of them are one JSON array."""
    raw = frame.encode("utf-8", "replace") if isinstance(frame, str) else frame
    try:
        lines: list[dict[str, Any]] = orjson.loads(b"[" + raw.strip(b"\n").replace(b"\n", b",") + b"]")
        orjson.dumps(lines)  # refuses what is too deep for other readers
    except (ValueError, TypeError):
        lines = []
    if lines and NUL not in raw and all(is_line(line) or _is_notice(line) for line in lines):
        return lines
    return [_parse_line(each) for each in raw.split(b"\n") if each.strip()]


def _is_notice(line: Any) -> bool:
    return isinstance(line, dict) and "type" in line and "kind" not in line


def _parse_line(raw: bytes) -> dict[str, Any]:
    """The line, or what stands for one that cannot be read."""
    return parse_line(raw + b"\n") or {"kind": UNREADABLE, "text": raw[:_SHOWN_LIMIT].decode("utf-8", "replace")}


class ShellStream:
    """What a shell says, as bytes; what agentctl says of it, as text (JSON).

    The iteration ends when the shell has ended or another reader has opened it (``overtaken``), and
    raises AgentctlUnreachable when the connection is lost.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse):
        self._socket = socket

    @property
    def overtaken(self) -> bool:
        """Another reader has opened the shell."""
        return self._socket.close_code == CLOSE_OVERTAKEN

    def __aiter__(self) -> AsyncIterator[bytes | str]:
        return self

    async def __anext__(self) -> bytes | str:
        message = await self._socket.receive()
        if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            return message.data  # type: ignore[no-any-return]
        if self.overtaken or self._socket.close_code in (aiohttp.WSCloseCode.OK, aiohttp.WSCloseCode.GOING_AWAY):
            raise StopAsyncIteration
        raise AgentctlUnreachable("The shell of agentctl broke off.", reason="closed")

    async def type(self, data: bytes) -> None:
        """Type; waits while the shell takes nothing in. Raises AgentctlUnreachable."""
        await self._sent(self._socket.send_bytes(data))

    async def resize(self, columns: int, rows: int) -> None:
        """Tell the shell how large its window is; raises AgentctlUnreachable."""
        await self._sent(self._socket.send_str(orjson.dumps({"resize": [columns, rows]}).decode()))

    async def _sent(self, sending: Awaitable[None]) -> None:
        try:
            await sending
        except (aiohttp.ClientError, ConnectionError) as error:
            raise AgentctlUnreachable("The shell of agentctl broke off.", reason="closed") from error
