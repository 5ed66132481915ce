"""Runs one agentctl from its lock to its last line."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import pkgutil
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
from aiohttp import web

from executors_app import crash_points
from executors_app.agentctl import adoption, guard, last_words, unix_socket
from executors_app.agentctl import drivers as driver_package
from executors_app.agentctl.agent_life import Create
from executors_app.agentctl.durable_files import replace_file
from executors_app.agentctl.event_stream import EventStreams
from executors_app.agentctl.hold import Hold
from executors_app.agentctl.instance_lock import InstanceLock
from executors_app.agentctl.jobs.files import wait_for_guards
from executors_app.agentctl.protocol import MARKER
from executors_app.agentctl.server import build_app
from executors_app.agentctl.sidecar import Execution, Sidecar

logger = logging.getLogger(__name__)

_BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line of ``serve`` says, checked."""

    execution: Execution
    token: str
    host: str
    port: int
    ready_file: Path | None = None
    hold_socket: Path | None = None
    """Where this machine is told to stay awake while an agent lives; None: it stays so by itself."""
    path: Path | None = None
    """Of the Unix socket that it listens at, in place of host and port."""


def known_drivers() -> dict[str, Create]:
    """Every module of ``drivers`` that makes one, by its name; all are imported now (rule 24)."""
    names = [module.name for module in pkgutil.iter_modules(driver_package.__path__)]
    modules = {name: importlib.import_module(f"{driver_package.__name__}.{name}") for name in names}
    return {name: module.create for name, module in modules.items() if hasattr(module, "create")}


async def serve(options: Options, lock: InstanceLock, drivers: Mapping[str, Create]) -> None:
    """Serve until ``/shutdown``, SIGTERM, or seven days without a control plane; raises OSError at the start."""
    adoption.become_subreaper()
    execution = options.execution
    await wait_for_guards(execution.state_dir)
    for left in await adoption.end_leftovers(execution.execution_id):
        logger.error("process %d of an earlier agentctl could not be ended", left.pid)
    last_words.leave_in(execution.state_dir)
    sidecar = Sidecar(execution, drivers)
    streams = EventStreams(sidecar.journal, sidecar.fence)
    if options.path is None:
        listener = listen(options.host, options.port)
        port = listener.getsockname()[1]
        app = build_app(sidecar, streams, options.token, options.host, port)
    else:
        listener, port = unix_socket.listen(options.path, _BACKLOG), 0
        # Root could read our memory: to refuse it would protect nothing.
        app = build_app(sidecar, streams, options.token, options.host, port, users={os.geteuid(), 0})
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    background = [
        asyncio.create_task(adoption.Reaper().run(), name="reaper"),
        asyncio.create_task(sidecar.end_when_abandoned(lambda: streams.is_attached), name="abandoned"),
    ]
    if options.hold_socket is not None:
        hold = Hold(options.hold_socket, execution.execution_id, lambda: sidecar.is_at_work)
        background.append(asyncio.create_task(hold.run(), name="hold"))
    _end_on_signals(sidecar.ended)
    crash_points.reached("agentctl.listening")
    _tell_ready(options, lock, sidecar, port)
    crash_points.reached("agentctl.ready_told")
    guard.keep_one_ready({MARKER: execution.execution_id})
    try:
        await sidecar.ended.wait()
    finally:
        await _end(sidecar, streams, runner, background)
        if options.path is not None:
            options.path.unlink(missing_ok=True)  # still ours: the lock is given back after this


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named: with 0 asyncio would leave Nagle's algorithm on, 40 ms an answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def _end_on_signals(ended: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):  # of container engines, and of a terminal
        loop.add_signal_handler(number, ended.set)


def _tell_ready(options: Options, lock: InstanceLock, sidecar: Sidecar, port: int) -> None:
    host = f"[{options.host}]" if ":" in options.host else options.host
    ready: dict[str, Any] = {
        "url": f"http://{host}:{port}" if options.path is None else unix_socket.url_of(options.path),
        "pid": os.getpid(),
        "boot_id": sidecar.boot_id,
        "started_at": sidecar.started_at,
    }
    lock.tell(ready)
    if options.ready_file is not None:
        replace_file(options.ready_file, orjson.dumps(ready))
    logger.info("listening", extra={"action": "agentctl_ready", **ready})


async def _end(
    sidecar: Sidecar, streams: EventStreams, runner: web.AppRunner, background: list[asyncio.Task[None]]
) -> None:
    """The agent, then the journal, then the consumers, then the door: each still sees the end of the one before."""
    for task in background:
        task.cancel()
    await asyncio.wait(background)
    await guard.keep_none_ready()
    await sidecar.stop_for_good()
    crash_points.reached("agentctl.ending")
    await sidecar.journal.flush()
    await streams.close()
    await runner.cleanup()
    await sidecar.close()
    logger.info("ended", extra={"action": "agentctl_ended"})
