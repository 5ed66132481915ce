"""Messages between a pool and the processes of its server: JSON, each after its length in eight bytes."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, Final

MAX_MESSAGE: Final = 32 << 20
"""Bytes of one message."""
_LENGTH: Final = struct.Struct("!Q")


class ProtocolError(Exception):
    """The other side closed the connection within a message, or a message is too long."""


def send_message(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a message. Raises OSError, and ProtocolError (having sent nothing) if it is too long."""
    raw = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if len(raw) > MAX_MESSAGE:
        raise ProtocolError
    connection.sendall(_LENGTH.pack(len(raw)) + raw)


def receive_message(connection: socket.socket) -> dict[str, Any]:
    """Wait for a message. Raises ProtocolError, and OSError, also for a timeout of the connection."""
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    if length > MAX_MESSAGE:
        raise ProtocolError
    message: dict[str, Any] = json.loads(_receive_exactly(connection, length).decode("utf-8", "surrogatepass"))
    return message


def _receive_exactly(connection: socket.socket, length: int) -> bytearray:
    found = bytearray()
    while len(found) < length:
        part = connection.recv(min(length - len(found), 1 << 20))
        if not part:
            raise ProtocolError
        found += part
    return found
