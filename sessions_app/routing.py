"""Where the WebSockets are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from django.db import Error
from django.urls import re_path

from sessions_app.consumers import Message, Nowhere, Receive, Send, SessionSocket, Socket, TaskSocket
from sessions_app.live.close_codes import CloseCode
from sessions_app.models.storage import trouble_of
from sessions_app.shell_socket import ShellSocket

Application = Callable[[Message, Receive, Send], Awaitable[None]]


def served(kind: type[Socket | ShellSocket]) -> Any:
    """An ASGI application that makes one such socket for each connection."""

    async def application(scope: Message, receive: Receive, send: Send) -> None:
        await kind(scope, receive, send).run()

    return application


class _Call:
    """One connection, as far as it matters to somebody who has to end it."""

    def __init__(self, receive: Receive, send: Send):
        self._receive, self._send = receive, send
        self._is_accepted = False

    async def send(self, message: Message) -> None:
        """Hand a message on."""
        self._is_accepted = self._is_accepted or message["type"] == "websocket.accept"
        await self._send(message)

    async def end(self, code: CloseCode) -> None:
        """Close it; accepted first, for a browser is told no code otherwise."""
        if not self._is_accepted:
            await self._receive()
            await self._send({"type": "websocket.accept"})
        await self._send({"type": "websocket.close", "code": int(code)})


class Patient:
    """Whoever is there while the database takes nothing is told to come back, wherever it was missed."""

    def __init__(self, inner: Application):
        self.inner = inner

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        call = _Call(receive, send)
        try:
            await self.inner(scope, receive, call.send)
        except Error as error:
            if trouble_of(error) is None:
                raise
            await call.end(CloseCode.UNREACHABLE)


websockets: Application = Patient(
    AuthMiddlewareStack(
        URLRouter(
            [
                re_path(r"^ws/sessions/(?P<key>[^/]+)/$", served(SessionSocket)),
                re_path(r"^ws/sessions/(?P<key>[^/]+)/shell/$", served(ShellSocket)),
                re_path(r"^ws/tasks/(?P<key>[^/]+)/$", served(TaskSocket)),
                re_path(r"", served(Nowhere)),
            ]
        )
    )
)
