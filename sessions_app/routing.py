"""Where the WebSockets are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from django.db import Error
from django.urls import re_path

from sessions_app.consumers import (
    AsgiMessage,
    AsgiReceive,
    AsgiSend,
    NotFoundConsumer,
    SessionConsumer,
    TaskConsumer,
    WebSocketConsumer,
)
from sessions_app.live.authentication import CloseCode
from sessions_app.models.database_errors import classify_error
from sessions_app.shell_consumer import ShellConsumer

AsgiApplication = Callable[[AsgiMessage, AsgiReceive, AsgiSend], Awaitable[None]]


def as_application(kind: type[WebSocketConsumer | ShellConsumer]) -> Any:
    """An ASGI application that makes one such socket for each connection."""

    async def application(scope: AsgiMessage, receive: AsgiReceive, send: AsgiSend) -> None:
        await kind(scope, receive, send).run()

    return application


class _Connection:
    """One connection, as far as it matters to somebody who has to end it."""

    def __init__(self, receive: AsgiReceive, send: AsgiSend):
        self._receive, self._send = receive, send
        self._is_accepted = False

    async def send(self, message: AsgiMessage) -> None:
        """Hand a message on."""
        self._is_accepted = self._is_accepted or message["type"] == "websocket.accept"
        await self._send(message)

    async def end(self, code: CloseCode) -> None:
        """Close it; accepted first, for a browser is told no code otherwise."""
        if not self._is_accepted:
            await self._receive()
            await self._send({"type": "websocket.accept"})
        await self._send({"type": "websocket.close", "code": int(code)})


class DatabaseOutageMiddleware:
    """Whoever is there while the database takes nothing is told to come back, wherever it was missed."""

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
                re_path(r"^ws/sessions/(?P<key>[^/]+)/$", as_application(SessionConsumer)),
                re_path(r"^ws/sessions/(?P<key>[^/]+)/shell/$", as_application(ShellConsumer)),
                re_path(r"^ws/tasks/(?P<key>[^/]+)/$", as_application(TaskConsumer)),
                re_path(r"", as_application(NotFoundConsumer)),
            ]
        )
    )
)
