"""``manage.py serve``: the web server, supervisor and worker as children of one process."""

from __future__ import annotations

import errno
import gc
import importlib
import ipaddress
import os
import signal
import socket
import time
from argparse import ArgumentParser
from functools import partial
from types import FrameType
from typing import Any, Final

from django.conf import settings
from django.core.management import CommandError, call_command, execute_from_command_line
from django.db import connections

from sessions_app.management.child_processes import ChildProcess, supervise_children
from sessions_app.management.output import VisibleCommand
from sessions_app.management.preloading import Preloading
from sessions_app.management.startup import (
    count_unapplied_migrations,
    refuse_incompatible_database,
    refuse_wrong_secret_key,
    report_database_errors,
    set_private_umask,
)
from sessions_app.portable import database_restore
from sessions_app.recovery.services import restarts
from sessions_app.worker import schedules

MAX_FRAME_SIZE: Final = 4 * 1024 * 1024
"""Maximum bytes of a WebSocket message. Consumers reject those above 1 MiB with an error that explains why."""
PRELOADED: Final = (
    *("kandev.urls", "sessions_app.routing", "sessions_app.supervisor.loop", "sessions_app.workflows.driver.driver"),
    *(
        "sessions_app.worker",
        "sessions_app.management.commands.qcluster",
        "daphne.http_protocol",
        "daphne.ws_protocol",
        "kandev.web_server",
    ),
)
"""Modules of the web server, supervisor and worker."""
PORT_WAIT_SECONDS: Final = 3.0
"""Seconds to wait for the web process of a killed predecessor to release the port."""


class Command(VisibleCommand):
    """Migrate the embedded database, then serve until SIGTERM or SIGINT; agents keep running."""

    help = "Run the web server, supervisor and worker together. Stopping them does not stop any agent."
    requires_migrations_checks = False
    requires_system_checks = [
        "executors"
    ]  # checks of the deployment only: checks of the code would slow down every restart

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the address to listen on."""
        parser.add_argument(
            "--host", default="127.0.0.1", help="IPv4 address or name to listen on (default: %(default)s)"
        )
        parser.add_argument(
            "--port", type=int, default=8000, help="port to listen on; 0 for any free one (default: %(default)s)"
        )

    def handle(self, *args: Any, host: str, port: int, **options: Any) -> None:
        """Serve. Exits with status 2 and one line if serving cannot start."""
        refuse_unprotected_public_host(host)
        set_private_umask()  # inherited by the processes that are started here
        # Before the database is touched: a second ``serve`` on the same port ends here and migrates nothing.
        listener = open_listener(host, port)
        prepare_database()
        signals: list[int] = []

        def stop(signum: int, frame: FrameType | None) -> None:
            signals.append(signum)

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        bound = listener.getsockname()[1]
        reserved = None
        if is_loopback(host):
            reserved = reserve_ipv6(bound)
        self._show_addresses(host, bound, with_name=reserved is not None)
        preload()
        children = child_processes(listener, reserved)
        requests = restarts.RestartOrders(loopback=is_loopback(host))

        preloading = Preloading(for_web=True)

        def prepare_restarts() -> None:
            # For the children that are started from now on: they are forks of this process.
            preloading.load_if_due()
            if requests.due(time.monotonic()):
                requests.done([child.name for child in children if child.kill()])

        supervise_children(children, stopped=lambda: bool(signals), before_each_check=prepare_restarts)

    def _show_addresses(self, host: str, port: int, *, with_name: bool) -> None:
        """Show where Kandev is reached; ``with_name``: a browser may look up its name as an address of IPv6."""
        if host == "0.0.0.0":  # noqa: S104 - compared, not bound
            host = "127.0.0.1"
        self.stdout.write(f"Kandev is running at http://{host}:{port}/ (press Ctrl-C to stop it; agents keep running)")
        if with_name and settings.KANDEV_LOCAL_NAME in settings.ALLOWED_HOSTS:
            self.stdout.write(f"In a browser: http://{settings.KANDEV_LOCAL_NAME}:{port}/")
        self.stdout.flush()


def preload() -> None:
    """Import what the children need, once for all of them, and leave the objects out of every garbage collection.

    A collection would write into the objects' headers, and each child would get its own copy of that memory.
    Daphne's server is left out: importing it installs Twisted's reactor, which belongs to the process that runs it.
    """
    for module in PRELOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


def child_processes(listener: socket.socket, reserved: socket.socket | None) -> list[ChildProcess]:
    """Return the web server, which inherits the listening socket, the supervisor and the worker."""
    unused: tuple[socket.socket, ...] = ()
    if reserved is not None:
        unused = (reserved,)
    return [
        # Killed at once: it has no state to save, and the next start needs its port.
        ChildProcess("web", partial(run_web, listener.fileno()), unused, signal.SIGKILL),
        ChildProcess("supervisor", partial(run_command, "supervise"), (listener, *unused)),
        ChildProcess("worker", partial(run_command, "qcluster", "--skip-checks"), (listener, *unused)),
    ]


def run_web(listening: int) -> None:
    """Serve HTTP and WebSockets on an open socket, given by its descriptor, until a signal ends the process."""
    from daphne.cli import CommandLineInterface  # noqa: PLC0415 - it installs the reactor of this process

    # Larger than our own limit, so that our consumers can answer with an error: daphne would just close.
    sizes = ("--websocket-max-message-size", str(MAX_FRAME_SIZE), "--websocket-max-frame-size", str(MAX_FRAME_SIZE))
    fixed = ("-v", "0", "--no-server-name", *sizes)
    CommandLineInterface().run([*fixed, "--fd", str(listening), "kandev.asgi:application"])


def run_command(*arguments: str) -> None:
    """Run a management command as ``manage.py`` would."""
    execute_from_command_line(["manage.py", *arguments])


def refuse_unprotected_public_host(host: str) -> None:
    """Raise CommandError for an address beyond the loopback unless a secret key and allowed hosts are set."""
    if settings.KANDEV_PUBLIC or is_loopback(host):
        return
    raise CommandError(f"will not serve on {host}: set KANDEV_SECRET_KEY and KANDEV_ALLOWED_HOSTS first", returncode=2)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket, which survives restarts of the web process."""
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
    """Bind ``[::1]:port``, which browsers try first for our local name; return None if another program has it.

    Otherwise another user of this machine could serve there in our name. The socket never listens, so browsers are
    refused at once and fall back to the IPv4 address.
    """
    if socket.has_ipv6:
        reserved = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    else:
        reserved = socket.socket()
    try:
        reserved.bind(("::1", port))
    except OSError as error:
        # Any other error means that there is no IPv6, so no other program can serve there either.
        if error.errno == errno.EADDRINUSE:
            reserved.close()
            return None
    return reserved


def _error_reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return str(error)


def prepare_database() -> None:
    """Migrate the embedded database, or check that another one is migrated. Make a restored database safe."""
    try:
        with report_database_errors():
            refuse_incompatible_database()
            if settings.KANDEV_EMBEDDED:
                call_command("migrate", verbosity=0, skip_checks=True)
                refuse_wrong_secret_key()  # once more: an earlier release's database only has the table for it now
            elif count_unapplied_migrations():
                raise CommandError("the database has unapplied migrations; run manage.py migrate first", returncode=2)
            database_restore.detect_restore()
            schedules.ensure_schedules()
    finally:
        connections.close_all()
