"""Serve one execution: its drivers, its HTTP listener, and the order of start and shutdown."""

from __future__ import annotations

import asyncio
import errno
import importlib
import logging
import os
import pkgutil
import signal
import socket
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from executors_app.agentctl import drivers as driver_package
from executors_app.agentctl.agent_lifecycle import DriverFactory
from executors_app.agentctl.command_line import bracketed_host
from executors_app.agentctl.http.connections import serve_app
from executors_app.agentctl.http.event_streams import EventStreams
from executors_app.agentctl.http.server import BODY_LIMIT, AuthMiddleware, CommandApi
from executors_app.agentctl.http.workspace_api import WorkspaceApi
from executors_app.agentctl.jobs.files import wait_for_guards
from executors_app.agentctl.process import forked_guard, guard_client, subreaper
from executors_app.agentctl.sidecar import Execution, Sidecar
from executors_app.agentctl.state_files import InstanceLock
from executors_app.agentctl.wakelock import Wakelock
from executors_app.machine import crash_points, sockets
from executors_app.machine.process import spawning
from executors_app.wire import socket_urls
from executors_app.wire.protocol import EXECUTION_MARKER

logger = logging.getLogger(__name__)

_BACKLOG: Final = 128

_SHORTEST_TOKEN: Final = 16


def read_token(path: Path) -> str:
    """Return the bearer token in a file; raises OSError, and ValueError for one that is too short."""
    token = path.read_text(encoding="utf-8").strip()
    if len(token) < _SHORTEST_TOKEN:
        raise ValueError(f"--token-file: the token needs at least {_SHORTEST_TOKEN} characters")
    return token


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The checked command line of ``serve``."""

    execution: Execution
    token_file: Path
    """Contains the bearer token, which is read once the workspace exists."""
    host: str
    port: int
    ready_file: Path | None = None
    hold_socket: Path | None = None
    """Where a sprite accepts requests to stay awake; None on a machine that never sleeps."""
    path: Path | None = None
    """Path of the Unix socket to listen on, instead of host and port."""


@cache
def load_drivers() -> Mapping[str, DriverFactory]:
    """Import every driver module and return its factory by name.

    All are imported before agentctl is ready: an upgrade may replace the files of the package while it runs. A fork of
    the launcher has them already.
    """
    names = [module.name for module in pkgutil.iter_modules(driver_package.__path__)]
    modules = {name: importlib.import_module(f"{driver_package.__name__}.{name}") for name in names}
    return {name: module.create for name, module in modules.items() if hasattr(module, "create")}


def build_app(
    sidecar: Sidecar, streams: EventStreams, token: str, host: str, port: int, *, users: Collection[int] | None = None
) -> web.Application:
    """Build the application of an agentctl that listens on ``host:port``; ``users`` as in ``AuthMiddleware``."""

    def on_contact() -> None:
        sidecar.last_contact = time.monotonic()

    names = () if users is None else ("localhost",)  # a Unix socket has no port
    auth = AuthMiddleware(token, host, port, on_contact, names, users=users)
    app = web.Application(middlewares=auth.middlewares(), client_max_size=BODY_LIMIT)
    app.add_routes(CommandApi(sidecar, streams).routes())
    app.add_routes(WorkspaceApi(sidecar.workspace, sidecar.snapshots).routes())
    return app


async def serve(options: ServeOptions, lock: InstanceLock, drivers: Mapping[str, DriverFactory]) -> None:
    """Serve until ``/shutdown``, SIGTERM, or seven days without a control plane.

    The workspace exists: from here on, every child is executed, so none inherits the token in our memory. Raises
    OSError and ValueError at the start.
    """
    token = read_token(options.token_file)
    subreaper.become_subreaper()
    execution = options.execution
    # The order matters: guards of an earlier agentctl first record how their jobs ended, then everything else that it
    # left is killed, and only then may anything be started: two agents must never work in one workspace.
    await wait_for_guards(execution.state_dir)
    if spawning.may_have_leftovers():
        for survivor in await subreaper.end_marked_processes(execution.execution_id, spare=forked_guard.own_pid()):
            logger.error("process %d of an earlier agentctl could not be killed", survivor.pid)
    subreaper.set_killed_processes_directory(execution.state_dir)
    sidecar = Sidecar(execution, drivers)
    streams = EventStreams(sidecar.journal, sidecar.fence)
    if options.path is None:
        listener = listen_tcp(options.host, options.port)
        port = listener.getsockname()[1]
        app = build_app(sidecar, streams, token, options.host, port)
    else:
        listener, port = sockets.listen_unix(options.path, _BACKLOG), 0
        # Root may connect too: it could read our memory anyway.
        app = build_app(sidecar, streams, token, options.host, port, users={os.geteuid(), 0})
    runner = await serve_app(app, listener)
    background = [
        asyncio.create_task(subreaper.Reaper().run(), name="reaper"),
        asyncio.create_task(sidecar.end_when_abandoned(lambda: streams.is_attached), name="abandoned"),
    ]
    if options.hold_socket is not None:
        hold = Wakelock(options.hold_socket, execution.execution_id, lambda: sidecar.is_busy)
        background.append(asyncio.create_task(hold.run(), name="hold"))
    _end_on_signals(sidecar.ended)
    crash_points.reached("agentctl.listening")
    _write_ready_file(options, lock, sidecar, port)
    crash_points.reached("agentctl.ready_told")
    guard_client.keep_spare_guard({EXECUTION_MARKER: execution.execution_id})
    try:
        await sidecar.ended.wait()
    finally:
        await _shut_down(sidecar, streams, runner, background)
        if options.path is not None:
            options.path.unlink(missing_ok=True)  # still ours: the instance lock is released after this


def _has_ipv6() -> bool:
    """Whether the kernel has IPv6 at all; one that was started without it may still have the modules."""
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP).close()
    except OSError as error:
        if error.errno != errno.EAFNOSUPPORT:
            raise
        return False
    return True


def listen_tcp(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 picks a free port. ``::`` stands for all addresses, also those of IPv4.

    Raises OSError.
    """
    if host == "::" and not _has_ipv6():
        host = "0.0.0.0"  # noqa: S104 - all addresses that there are
    family = socket.AF_INET
    if ":" in host:
        family = socket.AF_INET6
    # The protocol is named: with 0, asyncio would not disable Nagle's algorithm, which costs 40 ms per answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if host == "::":
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind((host, port))
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def _end_on_signals(ended: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):  # from container engines, and from a terminal
        loop.add_signal_handler(number, ended.set)


def _write_ready_file(options: ServeOptions, lock: InstanceLock, sidecar: Sidecar, port: int) -> None:
    if options.path is None:
        url = f"http://{bracketed_host(options.host)}:{port}"
    else:
        url = socket_urls.unix_url(options.path)
    ready: dict[str, Any] = {
        "url": url,
        "pid": os.getpid(),
        "boot_id": sidecar.boot_id,
        "started_at": sidecar.started_at,
    }
    lock.publish_ready_info(ready, options.ready_file)
    logger.info("listening", extra={"action": "agentctl_ready", **ready})


async def _shut_down(
    sidecar: Sidecar, streams: EventStreams, runner: web.AppRunner, background: list[asyncio.Task[None]]
) -> None:
    """Stop the agent, then flush the journal, close its consumers and the listener, in this order.

    Each step still sees the result of the one before: the agent's end is journaled, and consumers get that line.
    """
    for task in background:
        task.cancel()
    await asyncio.wait(background)
    await guard_client.drop_spare_guard()
    await sidecar.stop_for_good()
    forked_guard.stop()
    crash_points.reached("agentctl.ending")
    await sidecar.journal.flush()
    await streams.close()
    await runner.cleanup()
    await sidecar.close()
    logger.info("ended", extra={"action": "agentctl_ended"})
