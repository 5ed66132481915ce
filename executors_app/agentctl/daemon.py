"""Serve one execution: the HTTP listener, the wakelock of a sprite, and the order of start and shutdown.

Also the parsing of addresses and the exit codes, which the host daemon shares.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import pkgutil
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
from aiohttp import web

from executors_app.agentctl import drivers as driver_package
from executors_app.agentctl.agent_lifecycle import DriverFactory
from executors_app.agentctl.http.connections import serve_app
from executors_app.agentctl.http.server import EventStreams, build_app
from executors_app.agentctl.job_store import wait_for_guards
from executors_app.agentctl.process import forked_guard, guard_client, subreaper
from executors_app.agentctl.sidecar import Execution, Sidecar
from executors_app.agentctl.state_files import AlreadyRunning, InstanceLock, replace_file
from executors_app.machine import crash_points, sockets
from executors_app.machine.process import spawning
from executors_app.wire import socket_urls
from executors_app.wire.errors import ExecutorError
from executors_app.wire.protocol import EXECUTION_MARKER

EXIT_START_FAILED: Final = 2
EXIT_ALREADY_RUNNING: Final = 3
EXIT_NO_WORKSPACE: Final = 4


def log_to_stderr() -> None:
    """Log to standard error, without characters that could control the terminal of whoever reads the log."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PrintableFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _PrintableFormatter(logging.Formatter):
    """Escapes what is not printable: the control plane's filter is not importable in a sandbox."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        return "".join(char if char.isprintable() or char in "\t\n" else ascii(char)[1:-1] for char in line)


def parse_address(text: str) -> tuple[str, int]:
    """Split ``HOST:PORT``; raises ValueError for anything else."""
    host, found, port = text.rpartition(":")
    if not found or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"--listen: {text!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_socket_path(text: str) -> Path | None:
    """Return the path of ``unix:PATH``, or None for another address; raises ValueError if it is not absolute."""
    try:
        return socket_urls.unix_path(text)
    except ValueError as error:
        raise ValueError(f"--listen: {error}") from error


def report_lock_holder(held: AlreadyRunning, ready_file: Path | None) -> int:
    """Print the address of the agentctl that holds the directory, and return the exit code."""
    if held.ready is None:
        return report_start_failure(TimeoutError("another agentctl holds the state directory and is not ready"))
    ready = orjson.dumps(held.ready)
    if ready_file is not None and not ready_file.exists():
        replace_file(ready_file, ready)  # whoever started it died before reading it, or deleted it
    sys.stdout.write(ready.decode() + "\n")
    return EXIT_ALREADY_RUNNING


def report_workspace_error(error: ExecutorError, ready_file: Path | None) -> int:
    """Report why the workspace cannot be created, in the places the launcher reads, and return the exit code."""
    permanent = {} if error.permanent else {"permanent": False}
    answer = orjson.dumps({"error": error.code, "message": error.message, **permanent})
    if ready_file is not None:
        replace_file(ready_file, answer)
    sys.stdout.write(answer.decode() + "\n")
    return EXIT_NO_WORKSPACE


def report_start_failure(error: Exception) -> int:
    """Print why agentctl could not start, and return the exit code."""
    sys.stderr.write(f"agentctl: {error}\n")
    return EXIT_START_FAILED


logger = logging.getLogger(__name__)

_WAKELOCK_URL: Final = "http://sprite/v1/tasks/"
_WAKELOCK_EXPIRY: Final = "5m"
_REFRESH_INTERVAL: Final = 60.0
_RETRY_DELAY: Final = 10.0
_CHECK_INTERVAL: Final = 1.0
_TIMEOUT: Final = 10.0


class Wakelock:
    """Keeps a sprite awake while ``wanted`` returns True, which is checked once a second.

    ``socket`` is where the sprite takes such requests; ``name`` names the task that holds it.
    """

    def __init__(self, socket: Path, name: str, wanted: Callable[[], bool]):
        self._socket, self._url, self._wanted = socket, _WAKELOCK_URL + name, wanted
        self._is_held = False
        self._refresh_at = self._retry_at = 0.0

    async def run(self) -> None:
        """Run until cancelled, then release the wakelock."""
        try:
            while True:
                await self._update()
                await asyncio.sleep(_CHECK_INTERVAL)
        finally:
            if self._is_held:
                await self._request("DELETE")

    async def _update(self) -> None:
        now, wanted = asyncio.get_running_loop().time(), self._wanted()
        is_news = wanted != self._is_held
        if now < self._retry_at or not (is_news or (wanted and now >= self._refresh_at)):
            return
        if await self._request("PUT" if wanted else "DELETE"):
            self._is_held, self._refresh_at = wanted, now + _REFRESH_INTERVAL
        else:
            self._retry_at = now + _RETRY_DELAY

    async def _request(self, method: str) -> bool:
        """Acquire (PUT) or release (DELETE) the wakelock; return whether the sprite confirmed it."""
        body = {"expire": _WAKELOCK_EXPIRY} if method == "PUT" else None
        try:
            async with (
                asyncio.timeout(_TIMEOUT),
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self._socket))) as http,
                http.request(method, self._url, json=body) as answer,
            ):
                return answer.status < 300 or (method == "DELETE" and answer.status == 404)
        except (TimeoutError, OSError, aiohttp.ClientError) as error:
            logger.warning("the sprite did not accept the request to stay awake: %s", error)
            return False


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


def listen_tcp(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 picks a free port. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named: with 0, asyncio would not disable Nagle's algorithm, which costs 40 ms per answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def _end_on_signals(ended: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):  # from container engines, and from a terminal
        loop.add_signal_handler(number, ended.set)


def _write_ready_file(options: ServeOptions, lock: InstanceLock, sidecar: Sidecar, port: int) -> None:
    host = f"[{options.host}]" if ":" in options.host else options.host
    ready: dict[str, Any] = {
        "url": f"http://{host}:{port}" if options.path is None else socket_urls.unix_url(options.path),
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
