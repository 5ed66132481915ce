"""``WS /shell``: a shell's bytes both ways; what is not bytes is JSON text.

``?shell=`` names it (``main``), ``?cols=&rows=`` size it. First comes ``{"shell", "offset", "running"}``:
``offset`` counts the bytes of all that the shell said before the replay that follows. At its end
``{"exit": CODE}``, then the socket closes. ``{"resize": [cols, rows]}`` is taken at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, Final

import orjson
from aiohttp import WSCloseCode, WSMsgType, web

from executors_app.agentctl.bodies import number
from executors_app.agentctl.protocol import CLOSE_OVERTAKEN
from executors_app.agentctl.refusals import Refused, invalid
from executors_app.agentctl.workspace.shells import Reader, Shell, Shells, check_size

logger = logging.getLogger(__name__)

HEARTBEAT: Final = 30.0
_MESSAGE_LIMIT: Final = 1 << 20
_GOODBYE: Final = 2.0
_BREATH: Final = 0.004
"""Seconds in which output is gathered behind a frame; a lone key's echo does not wait."""


class ShellSockets:
    """Serves the shells of one session."""

    def __init__(self, shells: Shells):
        self._shells = shells

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Open or find the shell, upgrade, and follow it until either end goes; Refused before the upgrade."""
        query = request.query
        socket = web.WebSocketResponse(
            compress=False, heartbeat=HEARTBEAT, max_msg_size=_MESSAGE_LIMIT, timeout=_GOODBYE
        )
        if not socket.can_prepare(request).ok:
            raise web.HTTPBadRequest(reason="this is a WebSocket")
        columns, rows = (number(query.get(side, default), side) for side, default in (("cols", "80"), ("rows", "24")))
        shell = self._shells.open(query.get("shell", "main"), columns, rows)
        await socket.prepare(request)
        reader = shell.attach()
        try:
            await _follow(socket, shell, reader)
        finally:
            shell.detach(reader)
        if not reader.overtaken:
            self._shells.forget(shell)
        return socket


async def _follow(socket: web.WebSocketResponse, shell: Shell, reader: Reader) -> None:
    sender = asyncio.create_task(_send(socket, shell, reader), name="shell out")
    receiver = asyncio.create_task(_receive(socket, shell), name="shell in")
    try:
        await asyncio.wait((sender, receiver), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sender, receiver):
            task.cancel()
        await asyncio.wait((sender, receiver))
        code = CLOSE_OVERTAKEN if reader.overtaken else WSCloseCode.OK
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE):
                await socket.close(code=code)


async def _send(socket: web.WebSocketResponse, shell: Shell, reader: Reader) -> None:
    hello = {"shell": shell.name, "offset": reader.position, "running": shell.running}
    try:
        await socket.send_str(orjson.dumps(hello).decode())
        while data := await reader.next():
            # Returns once the socket has taken it: a slow reader holds up its shell alone.
            await socket.send_bytes(data)
            reader.done()
            await asyncio.sleep(_BREATH)
        if not reader.overtaken:
            await socket.send_str(orjson.dumps({"exit": shell.exit_code}).decode())
    except (ConnectionError, RuntimeError):
        pass  # the reader has left


async def _receive(socket: web.WebSocketResponse, shell: Shell) -> None:
    async for message in socket:
        if message.type == WSMsgType.BINARY:
            await shell.write(message.data)
        elif message.type == WSMsgType.TEXT:
            try:
                shell.resize(*_size(message.data))
            except Refused as error:
                with contextlib.suppress(ConnectionError, RuntimeError):
                    await socket.send_str(orjson.dumps({"error": error.message}).decode())


def _size(text: str) -> tuple[int, int]:
    """Columns and rows of ``{"resize": [cols, rows]}``; Refused for anything else."""
    try:
        message: Any = orjson.loads(text)
        columns, rows = message["resize"]
    except (ValueError, TypeError, KeyError):
        raise invalid('only {"resize": [cols, rows]} is taken') from None
    check_size(columns, rows)
    return columns, rows
