"""Serve an execution in the launcher before it forks any: its forks share what Python makes and caches at first use.

That is half a megabyte of each fork, such as the specialised code of the functions that serve a request.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from pathlib import Path
from typing import Final

from aiohttp import web

from executors_app.agentctl.daemon import load_drivers
from executors_app.agentctl.http import sockets
from executors_app.agentctl.http.server import EventStreams, build_app
from executors_app.agentctl.protocol import GENERATION_HEADER, JournalKind
from executors_app.agentctl.sidecar import Execution, Sidecar

_REQUESTS: Final = 40
"""Python specialises the code of a function after some calls."""


def rehearse() -> None:
    """Serve an execution without an agent, in a directory of its own; leaves no thread and no file. Raises OSError."""
    with tempfile.TemporaryDirectory(prefix="kandev-launcher-") as home:
        asyncio.run(_serve(Path(home)))


async def _serve(state_dir: Path) -> None:
    token, path = secrets.token_hex(16), state_dir / "socket"
    sidecar = Sidecar(Execution("rehearsal", "rehearsal", state_dir, state_dir), load_drivers())
    streams = EventStreams(sidecar.journal, sidecar.fence)
    app = build_app(sidecar, streams, token, "localhost", 0, users={os.geteuid()})
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        await web.SockSite(runner, sockets.listen_unix(path, 1)).start()
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
