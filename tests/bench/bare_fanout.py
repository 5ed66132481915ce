"""The floor of the fan-out: an ASGI application that sends the same frame to everybody, and does nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

Message = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]

FRAME: Final = '{"type":"event","event":"session.workspace.changed","payload":"' + "x" * 260 + '"}'
"""As long as an event with a few words."""
_everybody: set[Send] = set()


async def application(scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
    """One socket; whatever it says, everybody is sent the frame."""
    await receive()
    await send({"type": "websocket.accept"})
    _everybody.add(send)
    while (await receive())["type"] != "websocket.disconnect":
        for one in _everybody:
            await one({"type": "websocket.send", "text": FRAME})
    _everybody.discard(send)
