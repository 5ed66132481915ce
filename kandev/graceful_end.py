"""How a web process ends: it accepts nothing new, answers what it has, and sends everybody else elsewhere.

Daphne cancels all requests at once. Here SIGTERM first closes the listening sockets and the idle connections, closes
WebSockets with 1012 and ends event streams, whose clients reconnect and continue after the last event that they have,
and waits until the other requests are answered. Only what takes longer than ``END_WITHIN`` is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from daphne.server import Server
from daphne.ws_protocol import WebSocketProtocol
from twisted.internet.defer import Deferred

from kandev.web_server import LimitedChannel
from sessions_app.stream.live.authentication import CloseCode
from sessions_app.stream.live.hub import get_hub

log = logging.getLogger(__name__)

END_WITHIN: Final = 10.0
"""Seconds that requests get to be answered; less than service managers wait before they kill (``TimeoutStopSec``)."""
CHECK_EVERY: Final = 0.05


def install() -> None:
    """Let daphne's servers end this way; call it before one runs."""
    Server.kill_all_applications = end_gracefully


def end_gracefully(server: Any) -> Any:
    """Return a Deferred that fires when ``server`` has nothing left to do; Twisted's reactor stops then."""
    return Deferred.fromFuture(asyncio.ensure_future(_end_and_report(server)))


async def _end_and_report(server: Any) -> None:
    try:
        await _end(server)
    except Exception:  # the process ends all the same
        log.exception("the web process could not end gracefully")


async def _end(server: Any) -> None:
    LimitedChannel.is_ending = True
    for listening in server.listeners:
        listening.addCallback(_stop_listening)
    for channel in LimitedChannel.open_ones.copy():
        channel.close_if_idle()
    await get_hub().disconnect_all(CloseCode.RESTARTING)
    for protocol in list(server.connections):
        if isinstance(protocol, WebSocketProtocol):
            _close_socket(protocol)
    try:
        async with asyncio.timeout(END_WITHIN):
            while _has_work(server):  # noqa: ASYNC110 - Twisted has no event for it
                await asyncio.sleep(CHECK_EVERY)
    except TimeoutError:
        log.warning("%d requests are cancelled: they took more than %g s", _count_running(server), END_WITHIN)
    await asyncio.gather(*_cancelled(server), return_exceptions=True)


def _stop_listening(port: Any) -> Any:
    port.stopListening()
    return port


def _close_socket(protocol: Any) -> None:
    if protocol.state == protocol.STATE_OPEN:
        protocol.end(CloseCode.RESTARTING)
    elif protocol.state == protocol.STATE_CONNECTING:
        protocol.transport.abortConnection()


def _has_work(server: Any) -> bool:
    """Return whether a request is being answered, an answer is being sent, or a socket is being closed."""
    sockets = [protocol for protocol in server.connections if isinstance(protocol, WebSocketProtocol)]
    is_closing = any(protocol.state != protocol.STATE_CLOSED for protocol in sockets)
    return is_closing or bool(LimitedChannel.open_ones) or bool(_count_running(server))


def _running(server: Any) -> list[Any]:
    applications = [details.get("application_instance") for details in server.connections.values()]
    return [application for application in applications if application is not None and not application.done()]


def _count_running(server: Any) -> int:
    return len(_running(server))


def _cancelled(server: Any) -> list[Any]:
    running = _running(server)
    for application in running:
        application.cancel()
    return running
