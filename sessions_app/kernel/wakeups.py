"""Wake other processes when the database has changed: a hint that carries no data.

Every waiting process listens on a Unix datagram socket in ``<data>/wake/``; other hosts, which only PostgreSQL allows,
are reached by ``pubsub``. A lost wake-up costs latency, never an event, because every process also asks the database
for its version at intervals.
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

from sessions_app.kernel import pubsub

_VERSION: Final = {
    "sqlite": "PRAGMA data_version",
    # A snapshot lists the transactions in progress, so it changes whenever one that has written ends.
    "postgresql": "SELECT pg_current_snapshot()::text",
}

_listeners: Final = set[socket.socket]()
_relays: Final = dict[int, pubsub.Relay]()
"""This process's relay while it has listeners, by pid: a forked child must not use its parent's."""


def database_version() -> str:
    """Return text that changes when another connection commits; comparable only within one connection."""
    with connection.cursor() as cursor:
        cursor.execute(_VERSION[connection.vendor])
        return str(cursor.fetchone()[0])


def socket_directory() -> Path:
    """Return the directory of the sockets; created on first use, accessible to our own user only."""
    path = Path(settings.KANDEV_DATA_DIR) / "wake"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def _short_directory() -> Iterator[Path]:
    """Yield a short path of the directory: a socket's address holds at most 107 bytes."""
    descriptor = os.open(socket_directory(), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def notify() -> None:
    """Wake every listening process, also on other hosts; never fails."""
    _notify_sockets("*.sock")
    if connection.vendor == "postgresql":
        _notify_hosts()


def notify_on_commit() -> None:
    """Call ``notify`` once after the current transaction commits, however often this is called."""
    if not any(function is notify for _, function, *_ in connection.run_on_commit):
        transaction.on_commit(notify)


def _notify_hosts() -> None:
    relay = _relays.get(os.getpid())
    if relay is not None:
        relay.tell()
    else:
        pubsub.notify_hosts(str(socket_directory()))


def _notify_sockets(pattern: str) -> None:
    """Wake the processes whose socket names match; never blocks."""
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
        pass  # its queue is full, so it is awake already


def open_listener() -> socket.socket:
    """Return a socket that becomes readable after each ``notify`` of any process."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.setblocking(False)
    with _short_directory() as folder:
        listener.bind(str(folder / f"{os.getpid()}-{os.urandom(4).hex()}.sock"))
    if connection.vendor == "postgresql":
        _start_relay(listener)
    return listener


def _start_relay(listener: socket.socket) -> None:
    """Start this process's relay, which passes wake-ups from other hosts to all of its listeners."""
    pid = os.getpid()
    _listeners.add(listener)
    if pid not in _relays:
        _relays[pid] = pubsub.Relay(str(socket_directory()), lambda: _notify_sockets(f"{pid}-*.sock"))
        _relays[pid].start()


def close_listener(listener: socket.socket) -> None:
    """Close a listener and delete its socket file."""
    _listeners.discard(listener)
    if not _listeners and (relay := _relays.pop(os.getpid(), None)) is not None:
        relay.end()
    name = Path(listener.getsockname()).name
    listener.close()
    with contextlib.suppress(OSError):
        (socket_directory() / name).unlink()
