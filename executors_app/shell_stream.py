"""A shell of a workspace as it comes in over agentctl's WebSocket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable

import aiohttp
import orjson

from executors_app.agentctl.protocol import CLOSE_OVERTAKEN
from executors_app.errors import AgentctlUnreachable


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
