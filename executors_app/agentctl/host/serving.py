"""Runs one host daemon. What it has started goes on when it ends, however it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson
from aiohttp import web

from executors_app.agentctl.durable_files import replace_file
from executors_app.agentctl.host.api import HostDoor, build_app
from executors_app.agentctl.host.certificate import Certificate
from executors_app.agentctl.host.instances import Instances
from executors_app.agentctl.host.proxy import Proxy
from executors_app.agentctl.host.sources import Sources
from executors_app.agentctl.instance_lock import InstanceLock
from executors_app.agentctl.serving import listen

logger = logging.getLogger(__name__)

_THREADS: Final = 64


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line of ``host`` says, checked."""

    root: Path
    digest: str
    """SHA-256 of the token, in hexadecimal."""
    host: str
    port: int
    names: Sequence[str]
    repositories: Sequence[str]
    certificate: Certificate | None
    ready_file: Path | None


async def serve(options: Options, lock: InstanceLock) -> None:
    """Serve until SIGTERM; raises OSError, ValueError at the start."""
    instances = Instances(options.root, Sources(options.repositories, options.root))
    boot_id = uuid.uuid4().hex
    listener = listen(options.host, options.port)
    port = listener.getsockname()[1]
    context = options.certificate.context() if options.certificate else None
    # Clones take minutes: a look at the instances must not wait behind them for a thread.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "host"))
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with Proxy() as proxy:
        door = HostDoor(instances, options.digest, options.host, port, options.names)
        app = build_app(door, instances, proxy, boot_id)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        await web.SockSite(runner, listener, ssl_context=context).start()
        _tell_ready(options, lock, port, boot_id)
        await ended.wait()
        await proxy.close_sockets()
        await runner.cleanup()
    logger.info("ended; the instances go on")


def _tell_ready(options: Options, lock: InstanceLock, port: int, boot_id: str) -> None:
    host = f"[{options.host}]" if ":" in options.host else options.host
    ready: dict[str, Any] = {
        "url": f"{'https' if options.certificate else 'http'}://{host}:{port}",
        "pid": os.getpid(),
        "boot_id": boot_id,
        "started_at": datetime.now(UTC).isoformat(),
        "fingerprint": options.certificate.fingerprint() if options.certificate else None,
    }
    lock.tell(ready)
    if options.ready_file is not None:
        replace_file(options.ready_file, orjson.dumps(ready))
    logger.info("listening on %s, certificate %s", ready["url"], ready["fingerprint"])
