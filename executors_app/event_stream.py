"""The journal of an agentctl as it comes in over its WebSocket, batch by batch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson

from executors_app.agentctl.protocol import CLOSE_STALE_GENERATION, Code
from executors_app.errors import AgentctlForeign, AgentctlUnreachable, StaleGeneration


class EventStream:
    """Batches of journal lines, one for each frame; a truncated notice is a batch of its own.

    The iteration ends when agentctl closes the stream in good order, and raises StaleGeneration
    when a newer generation has taken over, AgentctlUnreachable when the connection is lost,
    AgentctlForeign when a frame holds anything but JSON objects.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse):
        self._socket = socket

    def __aiter__(self) -> AsyncIterator[list[dict[str, Any]]]:
        return self

    async def __anext__(self) -> list[dict[str, Any]]:
        message = await self._socket.receive()
        if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            return _parse(message.data)
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


def _parse(frame: str | bytes) -> list[dict[str, Any]]:
    """The lines of a frame; a line holds no raw line end, so all of them are one JSON array."""
    raw = frame.encode() if isinstance(frame, str) else frame
    try:
        lines = orjson.loads(b"[" + raw.strip(b"\n").replace(b"\n", b",") + b"]")
    except orjson.JSONDecodeError as error:
        raise AgentctlForeign("The event stream holds something else than JSON lines.", reason="no_json") from error
    if not all(isinstance(line, dict) for line in lines):
        raise AgentctlForeign("The event stream holds something else than JSON objects.", reason="no_json")
    return lines  # type: ignore[no-any-return]
