"""One event to many sockets of one session: a served web beside a bare server that only sends."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from django.contrib.auth import get_user_model
from django.db import transaction
from rest_framework.authtoken.models import Token

from sessions_app.board.services import tasks
from sessions_app.kernel.database_threads import DatabaseThread
from sessions_app.models import NewEvent, append_events
from tests.bench.figures import Figure, in_turn
from tests.bench.world import World
from tests.preloaded import PreloadedProcess

WITHIN = 30.0
"""Timeout in seconds for one event to reach every client."""
STARTS_WITHIN = 120.0
"""Timeout in seconds until a new server answers."""
SOCKETS_PER_USER = 50
"""Sockets of one user."""
FLOOR_LIMIT = 2.0
LAYER_LIMIT = 0.25
PAYLOAD = {"text": "a few words of an agent"}
EMPTY_FRAME = b"\x81\x80\0\0\0\0"
"""An empty text frame, masked with zeros."""


def to_all(world: World, sockets: int, rounds: int, *, limited: bool) -> list[Figure]:
    """Measure from an event's commit until ``sockets`` clients have it, beside a bare server and a channel layer."""
    world.empty()
    task = world.task("Watched")
    task.save()
    session = tasks.create_session(world.user, task, world.profile, world.executor, desired_state="stopped")
    with ExitStack() as stack:
        port = stack.enter_context(serving("kandev.asgi:application"))
        floor_port = stack.enter_context(serving("tests.bench.bare_fanout:application"))
        layer_port = stack.enter_context(serving("tests.bench.channel_layer:application"))
        tokens = tokens_of(world, -(-sockets // SOCKETS_PER_USER))
        path = f"/ws/sessions/{session.id}/"
        crowd = stack.enter_context(closing(Crowd(port, path, [tokens[n // SOCKETS_PER_USER] for n in range(sockets)])))
        bare_crowd = stack.enter_context(closing(Crowd(floor_port, "/", [""] * sockets)))
        layer_crowd = stack.enter_context(closing(Crowd(layer_port, "/", [""] * sockets)))
        crowd.wait_until_all_received(b'"hello"')
        seconds, floor, layer = map(min, asyncio.run(_beside(session.id, crowd, [bare_crowd, layer_crowd], rounds)))
    row = f"one event to {sockets} sockets"
    return [
        Figure(row, seconds, "bare sends", floor, limit=FLOOR_LIMIT if limited else None),
        Figure(row, seconds, "group_send, in memory", layer, limit=LAYER_LIMIT if limited else None),
    ]


async def _beside(session_id: uuid.UUID, crowd: Crowd, others: Sequence[Crowd], rounds: int) -> list[list[float]]:
    def tell() -> None:
        with transaction.atomic():
            seq = append_events(session_id, [NewEvent("session.workspace.changed", PAYLOAD)])
        crowd.wait_until_all_received(b'"seq":%d,' % seq)

    writer = DatabaseThread("bench")
    try:
        await writer(tell)  # new clients read this one from the log; the next is sent
        return await in_turn(rounds, lambda: writer(tell), *(other.ring for other in others))
    finally:
        writer.close()


def tokens_of(world: World, count: int) -> list[str]:
    """Return the API tokens of that many members of the team."""
    keys = []
    for number in range(count):
        user, _ = get_user_model().objects.get_or_create(username=f"watcher-{number}")
        user.groups.add(world.team)
        keys.append(Token.objects.get_or_create(user=user)[0].key)
    return keys


class Crowd:
    """Many clients of one address, read with epoll to do as little work as possible at this end."""

    def __init__(self, port: int, path: str, tokens: Sequence[str]):
        self._sockets: dict[int, socket.socket] = {}
        self._unread: dict[int, bytes] = {}
        self._poll = select.epoll()
        for token in tokens:
            one = handshake(port, path, token)
            self._sockets[one.fileno()] = one
            self._poll.register(one, select.EPOLLIN)

    def close(self) -> None:
        self._poll.close()
        for one in self._sockets.values():
            one.close()

    def ring(self) -> None:
        """Let one client send a message, and wait until all have received the other server's answer."""
        next(iter(self._sockets.values())).sendall(EMPTY_FRAME)
        self.wait_until_all_received(b'"payload"')

    def wait_until_all_received(self, words: bytes) -> None:
        """Read until each client has received ``words``; raise AssertionError if one is late or lost."""
        waiting, deadline = set(self._sockets), time.monotonic() + WITHIN
        while waiting:
            assert time.monotonic() < deadline, f"{len(waiting)} sockets have not received {words!r}"
            for descriptor, _ in self._poll.poll(1):
                data = self._sockets[descriptor].recv(65536)
                assert data, "a socket was closed"
                heard = self._unread.pop(descriptor, b"") + data
                if words in heard:
                    waiting.discard(descriptor)
                else:
                    self._unread[descriptor] = heard


def handshake(port: int, path: str, token: str) -> socket.socket:
    """Return an open WebSocket to that address."""
    one = socket.create_connection(("127.0.0.1", port), timeout=STARTS_WITHIN)
    lines = (
        f"GET {path} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        *([f"Authorization: Token {token}"] if token else []),
    )
    one.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):  # byte by byte: a frame may follow
        byte = one.recv(1)
        assert byte, f"closed after {head!r}"
        head += byte
    assert b" 101 " in head.splitlines()[0], head
    return one


@contextmanager
def serving(application: str) -> Iterator[int]:
    """Serve an application as ``manage.py serve`` does; yield its port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        port: int = listener.getsockname()[1]
        argv = ["-m", "daphne", "-v", "0", "--fd", str(listener.fileno()), application]
        quiet = subprocess.DEVNULL
        with PreloadedProcess(argv, env=os.environ, keeps=[listener.fileno()], stderr=quiet) as process:
            try:
                yield port
            finally:
                process.kill()
