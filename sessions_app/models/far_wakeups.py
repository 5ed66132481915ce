"""Wake-ups between hosts that share a PostgreSQL: NOTIFY by whoever has written, LISTEN by whoever waits.

A hint like those within a host: while a connection is broken everybody is woken by the clock, and nothing is lost.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from typing import Any, Final

from django.db import Error, connection, connections

log = logging.getLogger(__name__)

CHANNEL: Final = "kandev_wakeups"
RETRY: Final = 2.0
"""Seconds until the next try after a connection that could not be had, or broke."""
CHECK_EVERY: Final = 30.0
"""Seconds after which a connection on which nothing came is asked whether it lives."""
_NOTIFY: Final = "SELECT pg_notify(%s, %s)"


@cache
def _host(machine: str, directory: str) -> str:
    found = os.stat(directory)  # noqa: PTH116 - device and inode, by whatever name
    return f"{machine}/{found.st_dev}/{found.st_ino}"


def tell_from(directory: str) -> None:
    """Wake the other hosts on this thread's connection; never fails. ``directory`` is where this host's bells are."""
    with suppress(Error), connection.cursor() as cursor:
        cursor.execute(_NOTIFY, (CHANNEL, _host(socket.gethostname(), directory)))


class Relay(threading.Thread):
    """A process's ear and mouth, on a connection of its own: ``hear`` is called when another host has rung."""

    def __init__(self, directory: str, hear: Callable[[], None]):
        super().__init__(name="wake-ups", daemon=True)
        self._here, self._hear = _host(socket.gethostname(), directory), hear
        self._ear, self._mouth = socket.socketpair()
        self._ear.setblocking(False)
        self._mouth.setblocking(False)
        self._over = threading.Event()

    def tell(self) -> None:
        """Wake the other hosts, soon and from another thread; many calls at once are one. Never blocks, never fails."""
        with suppress(OSError):  # full: that is under way already
            self._mouth.send(b"!")

    def end(self) -> None:
        """Hear no more."""
        self._over.set()
        self.tell()

    def run(self) -> None:
        """Listen until the end; a connection that breaks is made anew."""
        with self._ear, self._mouth:
            while not self._over.is_set():
                try:
                    with connections["default"].wrap_database_errors, closing(_own_connection()) as session:
                        self._serve(session)
                except (Error, OSError) as error:
                    log.warning("other hosts are heard by the clock alone: %s", error)
                    self._over.wait(RETRY)

    def _serve(self, session: Any) -> None:
        session.add_notify_handler(self._note)
        session.execute("SET synchronous_commit TO off")  # nothing that it writes is to be kept
        session.execute(f"LISTEN {CHANNEL}")
        self._hear()  # it was deaf until now
        while not self._over.is_set():
            select.select([session, self._ear], [], [], CHECK_EVERY)
            # Whatever is executed hands what has come to the handler.
            if self._is_told():
                session.execute(_NOTIFY, (CHANNEL, self._here))
            else:
                session.execute("SELECT 1")

    def _is_told(self) -> bool:
        try:
            return bool(self._ear.recv(4096))
        except BlockingIOError:
            return False

    def _note(self, notify: Any) -> None:
        if notify.payload != self._here:
            self._hear()


def _own_connection() -> Any:
    """A connection of this thread, of the kind that Django has."""
    database = connections["default"]
    session = database.get_new_connection(database.get_connection_params())
    session.autocommit = True
    return session
