"""Run the host daemon, whose instances keep running when it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Final

from executors_app.agentctl.command_line import bracketed_host, report_lock_holder, report_start_failure
from executors_app.agentctl.daemon import listen_tcp
from executors_app.agentctl.host.allowed_repositories import AllowedRepositories
from executors_app.agentctl.host.api import HostAuthMiddleware, build_app
from executors_app.agentctl.host.instances import InstanceManager
from executors_app.agentctl.host.options import HostOptions, argument_parser, parse_options
from executors_app.agentctl.host.proxy import InstanceProxy
from executors_app.agentctl.http.connections import serve_app
from executors_app.agentctl.state_files import AlreadyRunning, InstanceLock

logger = logging.getLogger(__name__)

_THREADS: Final = 64


async def serve_host(options: HostOptions, lock: InstanceLock) -> None:
    """Serve until SIGTERM; raises OSError, ValueError at the start."""
    instances = InstanceManager(options.root, AllowedRepositories(options.repositories, options.root))
    boot_id = uuid.uuid4().hex
    listener = listen_tcp(options.host, options.port)
    port = listener.getsockname()[1]
    context = None
    if options.certificate:
        context = options.certificate.context()
    # Clones take minutes: observing the instances must not wait behind them for a thread.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "host"))
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with InstanceProxy() as proxy:
        auth = HostAuthMiddleware(instances, options.digest, options.host, port, options.names)
        app = build_app(auth, instances, proxy, boot_id)
        runner = await serve_app(app, listener, ssl_context=context)
        _write_ready_file(options, lock, port, boot_id)
        await ended.wait()
        await proxy.close_sockets()
        await runner.cleanup()
    logger.info("stopped; the instances keep running")


def _write_ready_file(options: HostOptions, lock: InstanceLock, port: int, boot_id: str) -> None:
    scheme, fingerprint = "http", None
    if options.certificate:
        scheme, fingerprint = "https", options.certificate.fingerprint()
    ready: dict[str, Any] = {
        "url": f"{scheme}://{bracketed_host(options.host)}:{port}",
        "pid": os.getpid(),
        "boot_id": boot_id,
        "started_at": datetime.now(UTC).isoformat(),
        "fingerprint": fingerprint,
    }
    lock.publish_ready_info(ready, options.ready_file)
    logger.info("listening on %s, certificate %s", ready["url"], ready["fingerprint"])


def main(argv: Sequence[str]) -> int:
    """Run the daemon and return its exit code."""
    arguments = argument_parser().parse_args(argv)
    try:
        options = parse_options(arguments)
        lock = InstanceLock(options.root)
    except AlreadyRunning as held:
        return report_lock_holder(held, arguments.ready_file)
    except (OSError, ValueError, ImportError) as error:
        return report_start_failure(error)
    try:
        asyncio.run(serve_host(options, lock))
    except (OSError, ValueError) as error:
        return report_start_failure(error)
    finally:
        lock.release()
    return 0
