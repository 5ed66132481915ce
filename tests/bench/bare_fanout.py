"""Floor of the fan-out: an ASGI application that sends the same frame to every client and does nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

Message = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]

FRAME: Final = '{"type":"event","event":"session.workspace.changed","payload":"' + "x" * 260 + '"}'
"""As long as an event with a few words."""
_clients: set[Send] = set()


async def application(scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
    """Serve one socket: each message from it sends the frame to every client."""
    await receive()
    await send({"type": "websocket.accept"})
    _clients.add(send)
    while (await receive())["type"] != "websocket.disconnect":
        for one in _clients:
            await one({"type": "websocket.send", "text": FRAME})
    _clients.discard(send)
