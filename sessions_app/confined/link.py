"""What an operation can ask of the process that requested it."""

from __future__ import annotations

import socket
from typing import Any

from sessions_app.confined.messages import receive_message, send_message


class ClientLink:
    """The connection of an operation to its client, which answers questions: a child can open nothing itself."""

    def __init__(self, connection: socket.socket):
        self._connection = connection

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the client’s answer to a question. Raises OSError and ProtocolError."""
        send_message(self._connection, {"question": question})
        return receive_message(self._connection)
