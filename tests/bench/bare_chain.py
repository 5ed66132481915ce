"""Floor of the way to the screen: four programs that each do only the least for one step of it.

An agent writes lines into a pipe, a second program appends them to a file, a third commits them to SQLite, and a fourth
reads them there and sends them over a WebSocket. ``python -m tests.bench.bare_chain STEP DIRECTORY`` is one of them.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from aiohttp import web

from tests.bench.bare import BareTable, appending
from tests.services import ROOT

CHUNK = 1 << 16
JOURNAL, DATABASE = "journal", "table.sqlite3"


class BareChain:
    """The programs of one run, in a directory of their own."""

    def __init__(self, directory: Path, server: subprocess.Popen[bytes], port: int):
        self._directory, self._server, self.port = directory, server, port

    def talk(self, seconds: float, rate: int) -> dict[int, float]:
        """Let the agent talk; return when each tick was written to the file."""
        with ExitStack() as stack:
            agent = stack.enter_context(
                _start("agent", self._directory, None, subprocess.PIPE, str(seconds), str(rate))
            )
            journal = stack.enter_context(_start("journal", self._directory, agent.stdout, subprocess.PIPE))
            stack.enter_context(_start("database", self._directory, journal.stdout, self._server.stdin))
        lines = (self._directory / JOURNAL).read_text().splitlines()
        return {int(number): float(at) for _, number, at in map(str.split, lines)}


@contextmanager
def bare_chain(directory: Path) -> Iterator[BareChain]:
    """Yield the chain with its web server, which ends afterwards."""
    directory.mkdir()
    BareTable(directory / DATABASE).close()  # created before two programs open it
    with _start("web", directory, subprocess.PIPE, subprocess.PIPE) as server:
        assert server.stdout is not None
        yield BareChain(directory, server, int(server.stdout.readline()))


def _start(
    step: str, directory: Path, stdin: IO[bytes] | int | None, stdout: IO[bytes] | int | None, *words: str
) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "tests.bench.bare_chain", step, str(directory), *words]
    return subprocess.Popen(argv, cwd=ROOT, stdin=stdin, stdout=stdout)


def run_agent(_: Path, seconds: str, rate: str) -> None:
    """Write numbered ticks to stdout."""
    began = time.monotonic()
    for number in range(1, round(float(seconds) * int(rate)) + 1):
        time.sleep(max(0.0, began + number / int(rate) - time.monotonic()))
        os.write(1, b"tick %d\n" % number)


def run_journal(directory: Path) -> None:
    """Append lines with the time to a file, and pass them on."""
    with appending(directory / JOURNAL) as file:
        while data := os.read(0, CHUNK):
            now = b" %f\n" % time.time()
            os.write(file, b"".join(line + now for line in data.splitlines()))
            os.write(1, data)


def run_database(directory: Path) -> None:
    """Commit all lines that have arrived as one row, and wake the web server."""
    table = BareTable(directory / DATABASE)
    while data := os.read(0, CHUNK):
        table.insert(1, data.decode())
        os.write(1, b"\n")


def run_server(directory: Path) -> None:
    """Send new rows over a WebSocket after each wake-up, until the end of stdin."""
    asyncio.run(_serve(BareTable(directory / DATABASE)))


async def _serve(table: BareTable) -> None:
    woken, ended = asyncio.Event(), asyncio.Event()

    def read() -> None:
        (woken if os.read(0, CHUNK) else ended).set()

    async def blank(_: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><title>Bare</title>", content_type="text/html")

    async def talk(request: web.Request) -> web.WebSocketResponse:
        socket, last = web.WebSocketResponse(), 0
        await socket.prepare(request)
        while True:
            await woken.wait()
            woken.clear()
            for seq, text in table.connection.execute("SELECT seq, payload FROM events WHERE seq > ?", (last,)):
                await socket.send_str(text)
                last = seq

    app = web.Application()
    app.router.add_get("/", talk)
    app.router.add_get("/page", blank)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    asyncio.get_running_loop().add_reader(0, read)
    print(runner.addresses[0][1], flush=True)
    await ended.wait()


STEPS: dict[str, Callable[..., None]] = {
    "agent": run_agent,
    "journal": run_journal,
    "database": run_database,
    "web": run_server,
}

if __name__ == "__main__":
    STEPS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
