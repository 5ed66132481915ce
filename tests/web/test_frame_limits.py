"""What the web server reads of a WebSocket at once, without a network."""

from __future__ import annotations

from typing import Any

import pytest
from autobahn.twisted.websocket import WebSocketServerFactory
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from kandev.web_server import EARLY_BYTES, SMALL_FRAME_BURST, STEPS_PER_TURN, LimitedWebSocket

HANDSHAKE = (
    b"GET /ws/board/ HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
PING = b"\x89\x80\0\0\0\0"
PONG = b"\x8a\x00"


class UndecidedServer:
    """Stands for daphne with an application that has not yet accepted the socket."""

    root_path = ""
    proxy_forwarded_address_header = None

    def __init__(self) -> None:
        self.call_count = 0

    def protocol_connected(self, protocol: Any) -> None:
        """Take no notice of a new connection."""

    def log_action(self, *words: Any) -> None:
        """Log nothing."""

    def create_application(self, protocol: Any, scope: Any) -> Any:
        """Count the question, and do not answer it."""
        self.call_count += 1
        return Deferred()


def _untyped(made_by: Any) -> Any:
    """Return a class untyped, because it has no types."""
    return made_by


class Connection:
    """One WebSocket, its transport, and the event loop's clock."""

    def __init__(self) -> None:
        factory = _untyped(WebSocketServerFactory)()
        self.server, self.clock = UndecidedServer(), Clock()
        self.transport: Any = _untyped(StringTransport)()
        factory.server_class, factory.reactor = self.server, self.clock
        self.protocol = LimitedWebSocket()
        self.protocol.factory, self.protocol._raw_query_string = factory, b""
        self.protocol.makeConnection(self.transport)


@pytest.fixture
def connection() -> Connection:
    return Connection()


def test_what_follows_a_handshake_is_no_other_handshake(connection: Connection) -> None:
    connection.protocol.dataReceived(HANDSHAKE)
    connection.protocol.dataReceived(HANDSHAKE)
    assert connection.server.call_count == 1


def test_client_that_floods_before_it_is_accepted_is_dropped(connection: Connection) -> None:
    connection.protocol.dataReceived(HANDSHAKE)
    connection.protocol.dataReceived(bytes(EARLY_BYTES))
    assert not connection.transport.disconnected
    connection.protocol.dataReceived(b"x")
    assert connection.transport.disconnected


def test_many_frames_of_one_read_are_read_in_several_turns(connection: Connection) -> None:
    connection.protocol.dataReceived(HANDSHAKE)
    connection.protocol.serverAccept(None)
    connection.transport.clear()
    connection.protocol.dataReceived(PING * SMALL_FRAME_BURST)
    assert connection.transport.value().count(PONG) <= STEPS_PER_TURN
    assert connection.transport.producerState == "paused"
    for _ in range(2 * SMALL_FRAME_BURST // STEPS_PER_TURN + 1):
        connection.clock.advance(0)
    assert connection.transport.value().count(PONG) == SMALL_FRAME_BURST
    assert connection.transport.producerState == "producing"
