"""Messages between a process and the one that loads workflows for it: JSON, after its length in eight bytes."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, Final

MAX_MESSAGE: Final = 32 << 20
"""Bytes."""
_LENGTH: Final = struct.Struct("!Q")


class ProtocolError(Exception):
    """The other side has closed the connection in the middle of a message, or sends too much."""


def send_message(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a message. Raises OSError, and MessageError for one that is too long, of which nothing is sent."""
    raw = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if len(raw) > MAX_MESSAGE:
        raise ProtocolError
    connection.sendall(_LENGTH.pack(len(raw)) + raw)


def receive_message(connection: socket.socket) -> dict[str, Any]:
    """Wait for a message. Raises OSError, also for a timeout of the connection, and MessageError."""
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
