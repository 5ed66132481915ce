"""The least that starts of agentctl and of scripts cost: forks of a process that has imported what the launcher has.

Run as ``python -m tests.bench.bare_forks DIRECTORY``. For each word on its input it writes a number: for ``start`` the
CPU seconds of a fork that answers one HTTP request and of its own fork, which runs one program; for ``script`` the
seconds of the forks and syncs of a script, and of ``sh -c true`` in the last fork.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import ClientSession, UnixConnector, web

from executors_app.agentctl import launcher

SYNCS = 5
"""Of a script: its request, two names, its beginning and its end."""
TRUE = "/bin/true"


@contextmanager
def bare_forks(home: Path) -> Iterator[Callable[[str], float]]:
    """Yield a function that measures ``start`` or ``script`` once."""
    home.mkdir(exist_ok=True)
    argv = [sys.executable, "-m", "tests.bench.bare_forks", str(home)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def measure(what: str) -> float:
            print(what, file=process.stdin, flush=True)
            return float(process.stdout.readline())  # type: ignore[union-attr]

        yield measure
        process.stdin.close()


def main() -> None:
    launcher.rehearse()
    gc.collect()
    gc.freeze()
    home = Path(sys.argv[1])
    for line in sys.stdin:
        print(_start(home) if line.strip() == "start" else _script(home), flush=True)


def _start(home: Path) -> float:
    before = _children_cpu()
    path, (ready, writer) = home / "bare-socket", os.pipe()
    child = _fork(lambda: asyncio.run(_serve_once(path, writer)))
    os.read(ready, 1)
    asyncio.run(_ask(path))
    os.waitpid(child, 0)
    for end in (ready, writer):
        os.close(end)
    return _children_cpu() - before


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _fork(run: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            run()
        finally:
            os._exit(0)
    return child


async def _serve_once(path: Path, writer: int) -> None:
    _guard()
    done = asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        done.set()
        return web.json_response({"status": "ok"})

    app = web.Application()
    app.add_routes([web.get("/status", answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    path.unlink(missing_ok=True)
    await web.UnixSite(runner, str(path)).start()
    os.write(writer, b"1")
    await done.wait()
    await runner.cleanup()


def _guard() -> None:
    """Fork a process that runs a program, and wait for both."""
    os.waitpid(_fork(lambda: os.waitpid(os.posix_spawn(TRUE, [TRUE], {}), 0)), 0)


async def _ask(path: Path) -> None:
    async with ClientSession(connector=UnixConnector(str(path))) as http, http.get("http://localhost/status") as answer:
        assert (await answer.json())["status"] == "ok"


def _script(home: Path) -> float:
    began = time.perf_counter()
    with (home / "bare-syncs").open("ab", buffering=0) as file:
        for _ in range(SYNCS):
            file.write(b"a line of a record\n")
            os.fdatasync(file.fileno())
    # As the guard of a script: a child of another process takes two forks, and the script another.
    ended, open_until_the_end = os.pipe()
    os.waitpid(_fork(lambda: _fork(_run_shell)), 0)
    os.close(open_until_the_end)
    os.read(ended, 1)
    os.close(ended)
    return time.perf_counter() - began


def _run_shell() -> None:
    os.waitpid(_fork(lambda: os.execv("/bin/sh", ["sh", "-c", "true"])), 0)  # noqa: S606


if __name__ == "__main__":
    main()
