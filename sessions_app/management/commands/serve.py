"""``manage.py serve``: web, supervisor and worker together, as children of one process."""

from __future__ import annotations

import errno
import ipaddress
import os
import signal
import socket
import sys
import time
from argparse import ArgumentParser
from pathlib import Path
from types import FrameType
from typing import Any, Final

from django.conf import settings
from django.core.management import BaseCommand, CommandError, call_command
from django.db import DatabaseError, connection, connections
from django.db.migrations.executor import MigrationExecutor

from sessions_app.management.child_processes import ChildProcess, supervise_children
from sessions_app.management.startup import set_private_umask
from sessions_app.services import database_restore, restarts
from sessions_app.tasks import schedules

MAX_FRAME_SIZE: Final = 4 * 1024 * 1024
"""Bytes of a WebSocket message that reach the consumers, who refuse those over 1 MiB with an error."""
PORT_WAIT_SECONDS: Final = 3.0
"""Seconds for the web process of a killed predecessor to let go of the port."""


class Command(BaseCommand):
    """Migrates the embedded database, then serves until SIGTERM or SIGINT; agents live on."""

    help = "Run web, supervisor and worker together; stopping them never stops an agent."
    requires_migrations_checks = False
    requires_system_checks = ["executors"]  # of the deployment; those of the code have no place in a restart

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Where to listen."""
        parser.add_argument("--host", default="127.0.0.1", help="an IPv4 address or a name (default: %(default)s)")
        parser.add_argument("--port", type=int, default=8000, help="0 takes a free one (default: %(default)s)")

    def handle(self, *args: Any, host: str, port: int, **options: Any) -> None:
        """Serve; exit status 2 with one line if that cannot start."""
        refuse_unprotected_public_host(host)
        set_private_umask()  # and the processes that it starts
        listener = open_listener(host, port)
        prepare_database()
        told: list[int] = []

        def stop(signum: int, frame: FrameType | None) -> None:
            told.append(signum)

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        shown = "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104 - compared, not bound
        bound = listener.getsockname()[1]
        reserved = reserve_ipv6(bound) if is_loopback(host) else None
        self.stdout.write(f"Kandev serves on http://{shown}:{bound}/ (Ctrl-C stops it, not the agents)")
        if reserved and settings.KANDEV_LOCAL_NAME in settings.ALLOWED_HOSTS:
            self.stdout.write(f"In a browser: http://{settings.KANDEV_LOCAL_NAME}:{bound}/")
        self.stdout.flush()
        kept = child_processes(listener)
        orders = restarts.RestartOrders(loopback=is_loopback(host))

        def restart_if_ordered() -> None:
            if orders.due(time.monotonic()):
                orders.done([child.name for child in kept if child.kill()])

        supervise_children(kept, stopped=lambda: bool(told), between=restart_if_ordered)


def child_processes(listener: socket.socket) -> list[ChildProcess]:
    """Web, supervisor and worker; the web process takes over the listening socket."""
    root = Path(settings.BASE_DIR)
    manage = (sys.executable, str(root / "manage.py"))
    listening = listener.fileno()
    web = (
        sys.executable,
        "-m",
        "daphne",
        "-v",
        "0",
        "--no-server-name",
        # What is too long for us is answered by us: daphne would just hang up.
        *("--websocket-max-message-size", str(MAX_FRAME_SIZE)),
        *("--websocket-max-frame-size", str(MAX_FRAME_SIZE)),
        "--fd",
        str(listening),
        "kandev.asgi:application",
    )
    return [
        # It holds no state to save, but the port, which the next start wants.
        ChildProcess("web", web, root, kept_descriptors=(listening,), orphan_signal=signal.SIGKILL),
        ChildProcess("supervisor", (*manage, "supervise"), root),
        ChildProcess("worker", (*manage, "qcluster", "--skip-checks"), root),
    ]


def refuse_unprotected_public_host(host: str) -> None:
    """Only the loopback address is served without a secret key and allowed hosts of the deployment's own."""
    if settings.KANDEV_PUBLIC or is_loopback(host):
        return
    raise CommandError(
        f"refusing to serve on {host}: set KANDEV_SECRET_KEY and KANDEV_ALLOWED_HOSTS first", returncode=2
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_listener(host: str, port: int) -> socket.socket:
    """A listening socket that outlives restarts of the web process."""
    deadline = time.monotonic() + PORT_WAIT_SECONDS
    while True:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(1024)
            return listener
        except (OSError, OverflowError) as error:
            listener.close()
            busy = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            if not busy or time.monotonic() > deadline:
                raise CommandError(f"cannot listen on {host}:{port}: {_error_reason(error)}", returncode=2) from error
        time.sleep(0.1)


def reserve_ipv6(port: int) -> socket.socket | None:
    """Keep others from serving at ``[::1]:port``, which browsers try first for our local name; None if somebody does.

    The socket is bound and never listens: a browser is refused there at once, and goes on to the IPv4 address.
    """
    reserved = socket.socket(socket.AF_INET6, socket.SOCK_STREAM) if socket.has_ipv6 else socket.socket()
    try:
        reserved.bind(("::1", port))
    except OSError as error:
        # Without IPv6 on this machine nobody can serve there.
        if error.errno == errno.EADDRINUSE:
            reserved.close()
            return None
    return reserved


def _error_reason(error: Exception) -> str:
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno and error.errno > 0 else str(error)


def prepare_database() -> None:
    """Migrate the embedded database; of another, ask that somebody has. A restored one is made safe."""
    try:
        if settings.KANDEV_EMBEDDED:
            call_command("migrate", verbosity=0, skip_checks=True)
        elif _has_unapplied_migrations():
            raise CommandError("the database lacks migrations: run manage.py migrate first", returncode=2)
        database_restore.detect_restore()
        schedules.ensure_schedules()
    except DatabaseError as error:
        raise CommandError(f"the database cannot be used: {str(error).splitlines()[0]}", returncode=2) from error
    finally:
        connections.close_all()


def _has_unapplied_migrations() -> bool:
    executor = MigrationExecutor(connection)
    return bool(executor.migration_plan(executor.loader.graph.leaf_nodes()))
