"""Wake-ups between hosts that share a PostgreSQL database: over Redis if configured, else over the database itself.

Like those within a host, they are hints. While the connection is broken, every process still polls at intervals, and
nothing is lost.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from typing import Any, Final

from django.conf import settings
from django.db import Error, connection, connections
from django.utils.module_loading import import_string

log = logging.getLogger(__name__)

RETRY: Final = 2.0
"""Seconds until the next try after a connection failed or broke."""
CHANNEL: Final = "kandev_wakeups"
CHECK_EVERY: Final = 30.0
"""Seconds without traffic after which the connection to PostgreSQL is checked."""
_NOTIFY: Final = "SELECT pg_notify(%s, %s)"


class PubSub(ABC):
    """A transport to the other hosts; ``errors`` are the exceptions that it raises when it breaks."""

    errors: tuple[type[Exception], ...]

    @abstractmethod
    def tell(self, here: str) -> None:
        """Wake the other hosts from a thread that has no relay; raises ``errors``."""

    @abstractmethod
    def serve(self, relay: Relay) -> None:
        """Receive and publish for a relay until it ends; raises ``errors`` when the connection breaks."""


def configured_pubsub() -> PubSub:
    """Return this deployment's transport; Redis costs the database neither connections nor commits."""
    if not settings.KANDEV_REDIS_URL:
        return PostgresPubSub()
    made: PubSub = import_string("sessions_app.kernel.pubsub_redis.RedisPubSub")()  # Redis is imported only if used
    return made


@cache
def _host_id(machine: str, directory: str) -> str:
    found = os.stat(directory)  # noqa: PTH116 - device and inode, by whatever name
    return f"{machine}/{found.st_dev}/{found.st_ino}"


def notify_hosts(directory: str) -> None:
    """Wake the other hosts from this thread; never fails. ``directory`` holds this host's sockets."""
    way = configured_pubsub()
    with suppress(*way.errors):
        way.tell(_host_id(socket.gethostname(), directory))


class Relay(threading.Thread):
    """A thread with its own connection to the other hosts; calls ``hear`` when one of them sends a wake-up."""

    def __init__(self, directory: str, hear: Callable[[], None]):
        super().__init__(name="wake-ups", daemon=True)
        self.here, self.hear = _host_id(socket.gethostname(), directory), hear
        self.listener, self._sender = socket.socketpair()
        """A descriptor that is readable while a wake-up waits to be published."""
        self.listener.setblocking(False)
        self._sender.setblocking(False)
        self._over = threading.Event()
        self._is_broken = False

    @property
    def is_over(self) -> bool:
        """Whether the relay should end."""
        return self._over.is_set()

    def tell(self) -> None:
        """Wake the other hosts, soon and from another thread; many calls at once are one. Never blocks, never fails."""
        with suppress(OSError):  # the buffer is full, so a wake-up is waiting already
            self._sender.send(b"!")

    def end(self) -> None:
        """End the relay."""
        self._over.set()
        self.tell()

    def run(self) -> None:
        """Listen until the end; reconnect when the connection breaks."""
        way = configured_pubsub()
        with self.listener, self._sender:
            while not self.is_over:
                try:
                    way.serve(self)
                except way.errors as error:
                    self._report_broken(error)
                    self._over.wait(RETRY)

    def connected(self) -> None:
        """Handle a new connection: what was sent before it is lost, so act as if a wake-up had arrived."""
        if self._is_broken:
            self._is_broken = False
            log.warning("wake-ups from other hosts arrive again")
        self.hear()

    def _report_broken(self, error: Exception) -> None:
        """Log a broken connection once, because it is tried again every two seconds."""
        if not self._is_broken:
            self._is_broken = True
            log.warning("no wake-ups from other hosts, polling instead: %s", error)

    def wait_for_request(self) -> bool:
        """Return whether a wake-up waited to be published, and consume it."""
        try:
            return bool(self.listener.recv(4096))
        except BlockingIOError:
            return False

    def note(self, who: str) -> None:
        """Handle a wake-up, which may be our own."""
        if who != self.here:
            self.hear()


class PostgresPubSub(PubSub):
    """LISTEN on the relay's own connection; without a relay, NOTIFY on the connection that wrote."""

    errors = (Error, OSError)

    def tell(self, here: str) -> None:
        """NOTIFY on this thread's connection."""
        with connection.cursor() as cursor:
            cursor.execute(_NOTIFY, (CHANNEL, here))

    def serve(self, relay: Relay) -> None:
        """LISTEN, and NOTIFY for the relay."""
        with connections["default"].wrap_database_errors, closing(_own_connection()) as session:
            session.add_notify_handler(lambda notify: relay.note(notify.payload))
            session.execute("SET synchronous_commit TO off")  # it writes nothing that must survive a crash
            session.execute(f"LISTEN {CHANNEL}")
            relay.connected()
            while not relay.is_over:
                select.select([session, relay.listener], [], [], CHECK_EVERY)
                # The driver calls the handler only while it executes a statement, so execute one in either case.
                if relay.wait_for_request():
                    session.execute(_NOTIFY, (CHANNEL, relay.here))
                else:
                    session.execute("SELECT 1")


def _own_connection() -> Any:
    """Open a connection for this thread with Django's settings."""
    database = connections["default"]
    session = database.get_new_connection(database.get_connection_params())
    session.autocommit = True
    return session
