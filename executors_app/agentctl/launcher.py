"""The launcher: a process that has imported all of agentctl and forks each agentctl of this machine.

Run as ``python -m executors_app.agentctl.launcher FD ROOM`` by the process that starts agentctls. That is its only
client, and it ends with it (``machine/process/forking.py``). So a launcher never serves another release than its own,
has the user, limits and control group of its client, and listens nowhere. Its forks share what it has imported.
"""

from __future__ import annotations

import asyncio
import codecs
import gc
import logging
import os
import secrets
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from executors_app.agentctl import __main__ as agentctl
from executors_app.agentctl.command_line import log_to_stderr
from executors_app.agentctl.daemon import build_app, load_drivers
from executors_app.agentctl.http.connections import serve_app
from executors_app.agentctl.http.event_streams import EventStreams
from executors_app.agentctl.process import forked_guard
from executors_app.agentctl.sidecar import Execution, Sidecar
from executors_app.machine import sockets
from executors_app.machine.process import forking, spawning
from executors_app.wire.protocol import EXECUTION_MARKER, GENERATION_HEADER, JournalKind

logger = logging.getLogger(__name__)

_ANY_ARGUMENTS: Final = (
    *("serve", "--workspace", "/", "--state-dir", "/", "--token-file", "/", "--ready-file", "/"),
    *("--session-id", "any", "--execution-id", "any", "--listen", "unix:/any", "--seed", "/"),
)

_REQUESTS: Final = 40
"""Python specialises the code of a function after some calls."""


def main() -> None:
    """Import what agentctl needs, and serve the descriptor on the command line."""
    log_to_stderr()
    _prepare()
    if threading.active_count() != 1 or len(list(Path("/proc/self/task").iterdir())) != 1:
        sys.exit("the launcher has threads: a fork of it would not be safe")
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        program = forking.Program(_fork_guard, _run_agentctl)
        forking.serve_forks(connection, sys.orig_argv[:-1], spawning.inherited_environment(), program)


def _prepare() -> None:
    """Create what is otherwise created at first use: each fork would create it again, in memory of its own."""
    load_drivers()
    agentctl.parser().parse_args(_ANY_ARGUMENTS)
    codecs.lookup("ascii")
    try:
        rehearse()
    except OSError as error:
        logger.warning("forks will use more memory than necessary, because the rehearsal failed: %s", error)


def rehearse() -> None:
    """Serve an execution without an agent, in its own directory, before any is forked. Raises OSError.

    The forks share what Python creates and caches at first use, such as the specialised code of the functions that
    serve a request: half a megabyte of each. Leaves no thread and no file.
    """
    with tempfile.TemporaryDirectory(prefix="kandev-launcher-") as home:
        asyncio.run(_serve(Path(home)))


async def _serve(state_dir: Path) -> None:
    token, path = secrets.token_hex(16), state_dir / "socket"
    sidecar = Sidecar(Execution("rehearsal", "rehearsal", state_dir, state_dir), load_drivers())
    streams = EventStreams(sidecar.journal, sidecar.fence)
    app = build_app(sidecar, streams, token, "localhost", 0, users={os.geteuid()})
    runner = await serve_app(app, sockets.listen_unix(path, 1))
    try:
        await _ask_for_status(path, token)
        sidecar.journal.append(JournalKind.LOG, level="info", text="rehearsal")
    finally:
        await runner.cleanup()
        await sidecar.close()


async def _ask_for_status(path: Path, token: str) -> None:
    body = '{"launch_id":"rehearsal","argv":["none"],"driver":"none"}'
    common = f"Host: localhost\r\nAuthorization: Bearer {token}\r\n{GENERATION_HEADER}: 1\r\n"
    requests = (
        f"GET /status HTTP/1.1\r\n{common}\r\n",
        f"POST /agent/start HTTP/1.1\r\n{common}Content-Length: {len(body)}\r\n\r\n{body}",  # refused: no such driver
    )
    reader, writer = await asyncio.open_unix_connection(path)
    for number in range(_REQUESTS):
        writer.write(requests[number % 2].encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
    writer.close()


def _fork_guard(own: forking.ProcIdentity, argv: Sequence[str]) -> None:
    # First, because everything that happens before this fork takes memory twice.
    forked_guard.start({EXECUTION_MARKER: argv[argv.index("--execution-id") + 1]}, own)


def _run_agentctl(argv: Sequence[str], files: Sequence[int]) -> int:
    (log,) = files
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    return agentctl.main(argv[argv.index("serve") :])


if __name__ == "__main__":
    main()
