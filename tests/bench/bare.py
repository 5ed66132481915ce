"""Floors: the least work that could have the same effect, without any of our code."""

from __future__ import annotations

import os
import select
import socket
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from executors_app.wire import socket_urls
from tests.support.fake_agentctl import FakeAgentctl

AT_ONCE = 50
TABLE = "CREATE TABLE IF NOT EXISTS events (session BLOB, seq INTEGER PRIMARY KEY, name TEXT, payload TEXT, at TEXT)"
INSERT = "INSERT INTO events VALUES (?, ?, ?, ?, ?)"


class BareGets:
    """One ``GET /status`` to each member of a fleet over epoll, without parsing the answers."""

    def __init__(self, fleet: Sequence[FakeAgentctl]):
        self._requests = [(_address(one.url), _request(one)) for one in fleet]

    def __call__(self) -> None:
        """Ask all members; raise AssertionError if an answer is not 200."""
        waiting, connected = iter(self._requests), dict[int, socket.socket]()
        with closing(select.epoll()) as poll:
            for _ in range(AT_ONCE):
                _ask_next(waiting, connected, poll)
            while connected:
                for descriptor, _ in poll.poll():
                    with connected.pop(descriptor) as connection:
                        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
                    _ask_next(waiting, connected, poll)


def _ask_next(
    waiting: Iterator[tuple[str | tuple[str, int], bytes]], connected: dict[int, socket.socket], poll: select.epoll
) -> None:
    for address, request in waiting:
        connection = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        connection.connect(address)  # does not wait within one machine
        connection.send(request)
        connection.setblocking(False)
        connected[connection.fileno()] = connection
        poll.register(connection.fileno(), select.EPOLLIN)
        return


def _address(url: str) -> str | tuple[str, int]:
    if path := socket_urls.unix_path(url):
        return str(path)
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)


def _request(one: FakeAgentctl) -> bytes:
    return f"GET /status HTTP/1.0\r\nAuthorization: Bearer {one.token}\r\n\r\n".encode()


@contextmanager
def appending(path: Path) -> Iterator[int]:
    """Yield the descriptor of a file that is open for appending."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def append_durably(descriptor: int, batch: bytes) -> None:
    """Write one batch and call fdatasync."""
    os.write(descriptor, batch)
    os.fdatasync(descriptor)


class BareTable:
    """An SQLite file with one table, as durable as ours (WAL, synchronous=FULL)."""

    def __init__(self, path: Path):
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=FULL")
        self.connection.execute(TABLE)
        self._seq = 0

    def insert(self, count: int, payload: str = '{"text": "a few words of an agent"}') -> None:
        """Insert ``count`` rows in one transaction."""
        first, self._seq = self._seq + 1, self._seq + count
        rows = [(b"s" * 16, seq, "session.message.updated", payload, "now") for seq in range(first, self._seq + 1)]
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.executemany(INSERT, rows)
        self.connection.execute("COMMIT")

    def close(self) -> None:
        self.connection.close()
