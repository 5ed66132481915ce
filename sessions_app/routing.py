"""Routes of the WebSockets, and their behaviour during a database outage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from django.db import Error
from django.urls import re_path

from sessions_app.kernel.database_errors import classify_error
from sessions_app.stream.consumers import (
    AsgiMessage,
    AsgiReceive,
    AsgiSend,
    NotFoundConsumer,
    SessionConsumer,
    TaskConsumer,
)
from sessions_app.stream.live.authentication import CloseCode
from sessions_app.workspace.consumers import ShellConsumer

AsgiApplication = Callable[[AsgiMessage, AsgiReceive, AsgiSend], Awaitable[None]]


class _Connection:
    """One connection, which remembers whether it was accepted."""

    def __init__(self, receive: AsgiReceive, send: AsgiSend):
        self._receive, self._send = receive, send
        self._is_accepted = False

    async def send(self, message: AsgiMessage) -> None:
        """Pass a message on."""
        self._is_accepted = self._is_accepted or message["type"] == "websocket.accept"
        await self._send(message)

    async def end(self, code: CloseCode) -> None:
        """Close it; accept it first if necessary, because browsers get the close code of accepted sockets only."""
        if not self._is_accepted:
            # Consumers accept at once. So the error came from the login middleware, and ``websocket.connect`` still
            # waits to be received.
            await self._receive()
            await self._send({"type": "websocket.accept"})
        await self._send({"type": "websocket.close", "code": int(code)})


class DatabaseOutageMiddleware:
    """During a database outage, close sockets with 4503, so that clients come back later."""

    def __init__(self, inner: AsgiApplication):
        self.inner = inner

    async def __call__(self, scope: AsgiMessage, receive: AsgiReceive, send: AsgiSend) -> None:
        """Serve one connection."""
        call = _Connection(receive, send)
        try:
            await self.inner(scope, receive, call.send)
        except Error as error:
            if classify_error(error) is None:
                raise
            await call.end(CloseCode.UNREACHABLE)


websockets: AsgiApplication = DatabaseOutageMiddleware(
    AuthMiddlewareStack(
        URLRouter(
            [
                re_path(r"^ws/sessions/(?P<key>[^/]+)/$", SessionConsumer.as_asgi()),
                re_path(r"^ws/sessions/(?P<key>[^/]+)/shell/$", ShellConsumer.as_asgi()),
                re_path(r"^ws/tasks/(?P<key>[^/]+)/$", TaskConsumer.as_asgi()),
                re_path(r"", NotFoundConsumer.as_asgi()),
            ]
        )
    )
)
