"""Where the WebSockets are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from django.urls import re_path

from sessions_app.consumers import Message, Nowhere, Receive, Send, SessionSocket, Socket, TaskSocket
from sessions_app.shell_socket import ShellSocket

Application = Callable[[Message, Receive, Send], Awaitable[None]]


def served(kind: type[Socket | ShellSocket]) -> Any:
    """An ASGI application that makes one such socket for each connection."""

    async def application(scope: Message, receive: Receive, send: Send) -> None:
        await kind(scope, receive, send).run()

    return application


websockets: Application = AuthMiddlewareStack(
    URLRouter(
        [
            re_path(r"^ws/sessions/(?P<key>[^/]+)/$", served(SessionSocket)),
            re_path(r"^ws/sessions/(?P<key>[^/]+)/shell/$", served(ShellSocket)),
            re_path(r"^ws/tasks/(?P<key>[^/]+)/$", served(TaskSocket)),
            re_path(r"", served(Nowhere)),
        ]
    )
)
