"""In-process clients of the sockets, and helpers that write events meanwhile."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import User
from django.test import Client

from kandev.asgi import application
from sessions_app.accounts.models import ApiToken
from sessions_app.kernel.database_threads import run_in_database
from sessions_app.models import TaskSession, session_transaction
from tests.raw_events import record_raw_event
from tests.waiting import PATIENCE, eventually_async

ORIGIN = "http://localhost"
Wire: Any = ApplicationCommunicator
"""The communicator has no types."""
Headers = dict[str, str]


def of_program(user: User, scope: str = ApiToken.Scope.WRITE) -> Headers:
    """Return the headers that a program of this user sends."""
    _, key = ApiToken.mint(user, "a program", scope, None)
    return {"Host": "localhost", "Authorization": f"Token {key}"}


def of_page(user: User, origin: str = ORIGIN) -> Headers:
    """Return the headers that this user's browser sends for a page of ``origin``."""
    client = Client()
    client.force_login(user)
    cookie = f"kandev_session={client.cookies['kandev_session'].value}"
    return {"Host": "localhost", "Cookie": cookie, "Origin": origin}


class Socket:
    """One open WebSocket."""

    def __init__(self, path: str, headers: Headers):
        address, _, query = path.partition("?")
        scope = {
            "type": "websocket",
            "path": address,
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "subprotocols": [],
        }
        self.wire = Wire(application, scope)

    async def accepted(self) -> None:
        """Complete the handshake."""
        await self.wire.send_input({"type": "websocket.connect"})
        assert (await self.wire.receive_output(PATIENCE))["type"] == "websocket.accept"

    async def frame(self, timeout: float = PATIENCE) -> dict[str, Any]:
        """Return the next frame, which must be JSON."""
        message = await self.wire.receive_output(timeout)
        assert message["type"] == "websocket.send", message
        frame: dict[str, Any] = json.loads(message["text"])
        return frame

    async def seqs(self, count: int) -> list[int]:
        """Return the ``seq`` of each of the next ``count`` events."""
        return [(await self.frame())["seq"] for _ in range(count)]

    async def close_code(self, timeout: float = PATIENCE) -> int:
        """Return the code with which the server closes, dropping the frames before that."""
        while (message := await self.wire.receive_output(timeout))["type"] == "websocket.send":
            pass
        return int(message["code"])

    async def tell(self, frame: Any) -> None:
        """Send JSON."""
        await self.wire.send_input({"type": "websocket.receive", "text": json.dumps(frame)})

    async def ask(self, action: Any, payload: Any = None, **more: Any) -> dict[str, Any]:
        """Send a request; return its response, skipping the events before it."""
        await self.tell({"type": "request", "id": "q", "action": action, "payload": payload, **more})
        return await self.response()

    async def response(self) -> dict[str, Any]:
        """Return the next response."""
        while (frame := await self.frame())["type"] != "response":
            pass
        return frame

    async def is_silent(self) -> bool:
        """Return whether nothing arrives within 0.3 s."""
        return bool(await self.wire.receive_nothing(0.3))


@asynccontextmanager
async def connected(path: str, headers: Headers) -> AsyncIterator[Socket]:
    """Open a socket that is accepted, and may be closed immediately."""
    socket = Socket(path, headers)
    await socket.accepted()
    try:
        yield socket
    finally:
        await socket.wire.send_input({"type": "websocket.disconnect", "code": 1000})
        await socket.wire.wait(PATIENCE)


def path_of(session: TaskSession, query: str = "") -> str:
    """Return the address of a session's socket."""
    return f"/ws/sessions/{session.id}/{query}"


def append(session_id: uuid.UUID, count: int, size: int = 0) -> None:
    """Append ``count`` events, each with ``size`` characters of text."""
    with session_transaction(session_id) as transaction:
        for number in range(count):
            record_raw_event(transaction, "session.workspace.changed", number=number, text="x" * size)


async def say(session: TaskSession, count: int = 1, size: int = 0) -> None:
    """Append events from a thread."""
    await run_in_database(append, session.id, count, size)


async def wait_until(predicate: Callable[[], Any], describe: str) -> None:
    """Wait until ``predicate`` returns a true value."""
    await eventually_async(predicate, describe=describe)
