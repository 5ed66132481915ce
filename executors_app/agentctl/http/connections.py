"""Serve an application on a listening socket, with limits on connections that no request has authenticated yet.

Whoever reaches the port can open connections, such as the agent in the same sandbox. Without limits it could hold all
of them, with a TLS handshake, a head or nothing that never ends, and lock the control plane out. So few connections
wait for their first authenticated request, and only briefly; a new one takes the place of the oldest. Those of the
control plane are not limited in number or duration.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import weakref
from typing import Any, Final

from aiohttp import web

MAX_UNAUTHENTICATED: Final = 512
"""Connections that may wait for their first authenticated request at once. After a restart, a supervisor opens the
event streams of all sessions of a host at once, and all of them are accepted before the first is authenticated."""
FIRST_REQUEST_TIMEOUT: Final = 10.0
"""Seconds until the head of an authenticated request must have arrived, the TLS handshake included."""
_HANDLING_TIME: Final = 0.5
"""Seconds to handle what arrived in time. If the process stood still (its container was paused, the machine had no
memory left), requests wait that arrived meanwhile."""
_MAX_ADDRESS: Final = 64 << 10
"""Bytes of a request's address, which may name 20 files by their paths."""
IDLE_TIMEOUT: Final = 75.0
"""Seconds between two requests on a connection. Clients of ours close an idle one after 15 s, so they reuse none that
is being closed here."""


class LimitedListener(socket.socket):
    """A listening socket that ends the accepted connections that nobody authenticates."""

    def __init__(self, listener: socket.socket):
        super().__init__(listener.family, listener.type, listener.proto, fileno=listener.detach())
        self.setblocking(False)
        self._waiting: dict[int, tuple[float, weakref.ref[socket.socket]]] = {}
        """By descriptor, oldest first: when a connection that is not authenticated was accepted, and its socket."""
        self._timer: asyncio.TimerHandle | None = None

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, at the cost of the oldest one if too many wait."""
        connection, address = super().accept()
        loop = asyncio.get_running_loop()
        number = connection.fileno()
        self._waiting.pop(number, None)  # of a connection that has been closed: the kernel gives its number again
        self._waiting[number] = loop.time(), weakref.ref(connection)
        if len(self._waiting) > MAX_UNAUTHENTICATED:
            self._forget_closed()
        if len(self._waiting) > MAX_UNAUTHENTICATED:
            self._end(next(iter(self._waiting)))
        if self._timer is None:
            self._timer = loop.call_later(FIRST_REQUEST_TIMEOUT, self._expire)
        return connection, address

    def admit(self, request: web.BaseRequest) -> None:
        """Limit the connection of an authenticated request no longer."""
        if request.transport is None:
            connection = None
        else:
            connection = request.transport.get_extra_info("socket")
        if connection is not None:
            self._waiting.pop(connection.fileno(), None)

    def close(self) -> None:
        """Stop listening; connections go on without limits."""
        if self._timer is not None:
            self._timer.cancel()
        super().close()

    def _forget_closed(self) -> None:
        for number, (_, reference) in list(self._waiting.items()):
            connection = reference()
            if connection is None or connection.fileno() != number:
                del self._waiting[number]

    def _expire(self) -> None:
        """End the connections whose time is over, once what they sent until now is handled."""
        self._timer = asyncio.get_running_loop().call_later(_HANDLING_TIME, self._end_late)

    def _end_late(self) -> None:
        """End the connections whose time is over, and come again for the next one."""
        self._timer = None
        loop = asyncio.get_running_loop()
        self._forget_closed()
        for number, (since, _) in list(self._waiting.items()):
            left = since + FIRST_REQUEST_TIMEOUT - loop.time()
            if left > 0:
                self._timer = loop.call_later(left, self._expire)
                return
            self._end(number)

    def _end(self, number: int) -> None:
        _, reference = self._waiting.pop(number)
        connection = reference()
        if connection is not None and connection.fileno() == number:
            with contextlib.suppress(OSError):  # the client has closed it
                connection.shutdown(socket.SHUT_RDWR)  # the transport sees the end, and closes it


LISTENER: Final = web.AppKey("listener", LimitedListener)


async def serve_app(
    app: web.Application,
    listener: socket.socket,
    *,
    ssl_context: ssl.SSLContext | None = None,
    shutdown_timeout: float = 1.0,
) -> web.AppRunner:
    """Serve an application on a listening socket, with limits on its connections; return what ends that."""
    limited = app[LISTENER] = LimitedListener(listener)
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=shutdown_timeout,
        keepalive_timeout=IDLE_TIMEOUT,
        max_line_size=_MAX_ADDRESS,
    )
    await runner.setup()
    await web.SockSite(runner, limited, ssl_context=ssl_context).start()
    return runner


def admit_connection(request: web.Request) -> None:
    """Limit the connection of an authenticated request no longer."""
    listener = request.config_dict.get(LISTENER)
    if listener is not None:
        listener.admit(request)
