"""Telling other processes that the database has changed: a hint, never the news itself.

Every process that waits listens on a Unix datagram socket in ``<data>/wake/``; other hosts, which only
PostgreSQL allows, are told by ``far_wakeups``. What does not arrive costs latency, never an event: by the
clock everybody asks the database for its version as well.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from django.conf import settings
from django.db import connection, transaction

from sessions_app.models.pubsub import base

_VERSION: Final = {
    "sqlite": "PRAGMA data_version",
    # A transaction that has written and ended is no longer in progress: xmax or the list has changed.
    "postgresql": "SELECT pg_current_snapshot()::text",
}

_listeners: Final = set[socket.socket]()
_relays: Final = dict[int, base.Relay]()
"""The one of this process, while somebody listens; by its pid, for a fork has none of its own."""


def database_version() -> str:
    """A text that changes when another connection has written; to be compared on one connection alone."""
    with connection.cursor() as cursor:
        cursor.execute(_VERSION[connection.vendor])
        return str(cursor.fetchone()[0])


def socket_directory() -> Path:
    """Where the sockets are; made on first use, for our own uid alone."""
    path = Path(settings.KANDEV_DATA_DIR) / "wake"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def _short_directory() -> Iterator[Path]:
    """The directory by a name that leaves room in a socket's address (107 bytes), however deep it lies."""
    descriptor = os.open(socket_directory(), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def notify() -> None:
    """Wake every listening process, on other hosts too; never fails."""
    _notify_sockets("*.sock")
    if connection.vendor == "postgresql":
        _notify_hosts()


def notify_on_commit() -> None:
    """Ring when the present transaction has committed: once, however often it is asked for."""
    if not any(function is notify for _, function, *_ in connection.run_on_commit):
        transaction.on_commit(notify)


def _notify_hosts() -> None:
    relay = _relays.get(os.getpid())
    if relay is not None:
        relay.tell()
    else:
        base.notify_hosts(str(socket_directory()))


def _notify_sockets(pattern: str) -> None:
    """Wake those whose sockets have such names; never blocks."""
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
        _short_directory() as folder,
    ):
        sender.setblocking(False)
        for path in folder.glob(pattern):
            _notify_socket(sender, path)


def _notify_socket(sender: socket.socket, path: Path) -> None:
    try:
        sender.sendto(b"!", str(path))
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)  # its process is dead
    except OSError:
        pass  # full: it is awake already


def open_listener() -> socket.socket:
    """A socket of this process, readable after each ``ring`` of anybody."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.setblocking(False)
    with _short_directory() as folder:
        listener.bind(str(folder / f"{os.getpid()}-{os.urandom(4).hex()}.sock"))
    if connection.vendor == "postgresql":
        _start_relay(listener)
    return listener


def _start_relay(listener: socket.socket) -> None:
    """While this process has a listener, its relay rings all that it has."""
    mine = os.getpid()
    _listeners.add(listener)
    if mine not in _relays:
        _relays[mine] = base.Relay(str(socket_directory()), lambda: _notify_sockets(f"{mine}-*.sock"))
        _relays[mine].start()


def close_listener(listener: socket.socket) -> None:
    """Stop listening and take the socket's file away."""
    _listeners.discard(listener)
    if not _listeners and (relay := _relays.pop(os.getpid(), None)) is not None:
        relay.end()
    name = Path(listener.getsockname()).name
    listener.close()
    with contextlib.suppress(OSError):
        (socket_directory() / name).unlink()
