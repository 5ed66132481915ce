"""The event stream and the shells of an agentctl, over WebSockets."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import aiohttp
import orjson

from executors_app.wire.errors import AgentctlUnreachable, StaleGeneration
from executors_app.wire.line_format import NUL, UNREADABLE, is_line, is_too_complex, parse_line
from executors_app.wire.protocol import CLOSE_OVERTAKEN, CLOSE_STALE_GENERATION, Code

_SHOWN_LIMIT = 200
"""Bytes of an unreadable line that are shown."""
_ACK_BYTES = 16 << 10
"""Bytes of frames after which they are acknowledged without being asked to: agentctl deletes megabytes at once."""


class EventStream:
    """Batches of journal lines, one per frame; a *truncated* notice forms a separate batch.

    The iteration ends when agentctl closes the stream normally. It raises StaleGeneration if a newer generation has
    taken over, and AgentctlUnreachable if the connection is lost. An unreadable line is replaced by one of the kind
    ``line_format.UNREADABLE``.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse):
        self._socket = socket
        self._frames: deque[tuple[int, int]] = deque(maxlen=4096)
        """The last seq and the size of each frame that is not stored yet."""
        self.frame_size = 0
        """Bytes of the frame that was received last."""
        self._stored = 0
        """Bytes that were stored since the last acknowledgement."""

    def __aiter__(self) -> AsyncIterator[list[dict[str, Any]]]:
        return self

    async def __anext__(self) -> list[dict[str, Any]]:
        message = await self._socket.receive()
        if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            lines, self.frame_size = parse_frame(message.data), len(message.data)
            last_seq = 0
            if lines and is_line(lines[-1]):
                last_seq = lines[-1]["seq"]
            self._frames.append((last_seq, self.frame_size))
            return lines
        code = self._socket.close_code
        if code == CLOSE_STALE_GENERATION:
            newer = "A newer generation has taken over this event stream."
            raise StaleGeneration(newer, status=409, refusal=Code.STALE_GENERATION.value)
        if code in (aiohttp.WSCloseCode.OK, aiohttp.WSCloseCode.GOING_AWAY):
            raise StopAsyncIteration
        raise AgentctlUnreachable(
            "The connection to agentctl's event stream was lost.", reason="closed", close_code=code
        )

    async def ack(self, seq: int, *, now: bool = True) -> None:
        """Acknowledge lines up to ``seq``, which agentctl may then delete; raises AgentctlUnreachable.

        Unless it must be ``now``, a few lines are left for a later acknowledgement.
        """
        while self._frames and self._frames[0][0] <= seq:
            self._stored += self._frames.popleft()[1]
        if not now and self._stored < _ACK_BYTES:
            return
        self._stored = 0
        try:
            await self._socket.send_str(f'{{"ack":{seq}}}')
        except (aiohttp.ClientError, ConnectionError) as error:
            raise AgentctlUnreachable("The connection to agentctl's event stream was lost.", reason="closed") from error


def parse_frame(frame: str | bytes) -> list[dict[str, Any]]:
    """Return the journal lines of a frame."""
    if isinstance(frame, str):
        frame = frame.encode("utf-8", "replace")
    if is_too_complex(frame):
        return _parse_each(frame)
    try:
        lines: list[dict[str, Any]] = orjson.loads(b"[" + frame.strip(b"\n").replace(b"\n", b",") + b"]")
        orjson.dumps(lines)  # raises if it is nested too deep for other readers
    except (ValueError, TypeError):
        lines = []
    if lines and NUL not in frame and all(is_line(line) or _is_notice(line) for line in lines):
        return lines
    return _parse_each(frame)


def _parse_each(raw: bytes) -> list[dict[str, Any]]:
    """Return the lines of a frame; those that cannot be read are replaced."""
    lines = []
    for part in filter(bytes.strip, raw.split(b"\n")):
        line = _parse_line(part)
        if line is None:
            line = {"kind": UNREADABLE, "text": part[:_SHOWN_LIMIT].decode("utf-8", "replace")}
        lines.append(line)
    return lines


def _parse_line(raw: bytes) -> dict[str, Any] | None:
    if is_too_complex(raw):
        return None
    return parse_line(raw + b"\n")


def _is_notice(line: Any) -> bool:
    return isinstance(line, dict) and "type" in line and "kind" not in line


class ShellStream:
    """The output of a shell as bytes, and agentctl's notices about it as text (JSON).

    The iteration ends when the shell has ended or another reader has opened it (``overtaken``). It raises
    AgentctlUnreachable if the connection is lost.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse):
        self._socket = socket

    @property
    def overtaken(self) -> bool:
        """Whether another reader has taken over the shell."""
        return self._socket.close_code == CLOSE_OVERTAKEN

    def __aiter__(self) -> AsyncIterator[bytes | str]:
        return self

    async def __anext__(self) -> bytes | str:
        message = await self._socket.receive()
        if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            return message.data  # type: ignore[no-any-return]
        if self.overtaken or self._socket.close_code in (aiohttp.WSCloseCode.OK, aiohttp.WSCloseCode.GOING_AWAY):
            raise StopAsyncIteration
        raise AgentctlUnreachable("The connection to the shell was lost.", reason="closed")

    async def type(self, data: bytes) -> None:
        """Send keyboard input; waits while the shell accepts none. Raises AgentctlUnreachable."""
        await self._sent(self._socket.send_bytes(data))

    async def resize(self, columns: int, rows: int) -> None:
        """Set the size of the shell's window; raises AgentctlUnreachable."""
        await self._sent(self._socket.send_str(orjson.dumps({"resize": [columns, rows]}).decode()))

    async def _sent(self, sending: Awaitable[None]) -> None:
        try:
            await sending
        except (aiohttp.ClientError, ConnectionError) as error:
            raise AgentctlUnreachable("The connection to the shell was lost.", reason="closed") from error
