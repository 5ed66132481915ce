"""A client of a shell's WebSocket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from tests.agentctl.running import Running
from tests.waiting import PATIENCE

QUICK = aiohttp.ClientWSTimeout(ws_close=0.5)


@dataclass
class Typist:
    """One connection to one shell."""

    socket: aiohttp.ClientWebSocketResponse
    hello: dict[str, Any]
    output: bytearray = field(default_factory=bytearray)
    _searched: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list)

    async def type(self, text: str) -> None:
        await self.socket.send_bytes(text.encode())

    async def resize(self, columns: int, rows: int) -> None:
        await self.socket.send_str(orjson.dumps({"resize": [columns, rows]}).decode())

    async def wait_for(self, wanted: str) -> None:
        """Read until the output contains ``wanted``."""
        try:
            while self.output.find(wanted.encode(), max(0, self._searched - len(wanted))) < 0:
                self._searched = len(self.output)
                assert await self._next(), "the socket was closed"
            self._searched = 0
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(
                f"never received {wanted!r} but {self.output[-2000:]!r}, and the messages {self.messages}"
            ) from error

    async def ends(self) -> int | None:
        """Read until the socket closes and return the exit code that was reported."""
        while await self._next():
            pass
        return next((one["exit"] for one in self.messages if "exit" in one), None)

    async def _next(self) -> bool:
        message = await self.socket.receive(timeout=PATIENCE)
        if message.type == aiohttp.WSMsgType.BINARY:
            self.output += message.data
        elif message.type == aiohttp.WSMsgType.TEXT:
            self.messages.append(orjson.loads(message.data))
        else:
            return False
        return True


@asynccontextmanager
async def shell(running: Running, name: str = "main", **size: int) -> AsyncIterator[Typist]:
    """Open a shell or connect to an existing one."""
    params = {"shell": name, **{side: str(value) for side, value in size.items()}}
    url = f"{running.url}/shell"
    async with running.http.ws_connect(
        url, params=params, headers=running.headers, max_msg_size=0, timeout=QUICK
    ) as socket:
        yield Typist(socket, orjson.loads(await socket.receive_str(timeout=PATIENCE)))
