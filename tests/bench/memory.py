"""Memory of an idle agentctl, beside a bare server that has imported the same libraries."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from tests.bench.figures import Figure
from tests.services import ROOT
from tests.waiting import eventually

LIMIT = 1.5
BARE = """
import asyncio, sys
import aiohttp.web, orjson

async def serve():
    async def status(request):
        return aiohttp.web.Response(body=orjson.dumps({"status": "ok"}), content_type="application/json")
    app = aiohttp.web.Application()
    app.router.add_get("/status", status)
    runner = aiohttp.web.AppRunner(app, access_log=None)
    await runner.setup()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(serve())
"""
"""A server with aiohttp and orjson, the libraries of ``requirements/agentctl.txt``."""


def of_an_agentctl(home: Path, processes: int, *, limited: bool) -> Figure:
    """Measure the resident memory of ``processes`` of each kind; figures are medians."""
    ours, theirs = [], []
    for _ in range(processes):
        with _agentctl(home / uuid.uuid4().hex) as process:
            ours.append(resident(process.pid))
        with _bare() as process:
            theirs.append(resident(process.pid))
    limit = LIMIT if limited else None
    return Figure("agentctl, idle", median(ours), "bare server, same libraries", median(theirs), "MB", limit=limit)


def resident(pid: int) -> float:
    """Return the resident megabytes of a process; 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * 4096 / 1e6


@contextmanager
def _agentctl(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    home.mkdir()
    workspace, token, ready = home / "workspace", home / "token", home / "ready.json"
    workspace.mkdir()
    token.write_text(uuid.uuid4().hex)
    token.chmod(0o600)
    places = {"workspace": workspace, "state-dir": home / "state", "token-file": token, "ready-file": ready}
    names = {"session-id": str(uuid.uuid4()), "execution-id": str(uuid.uuid4())}
    words = [word for name, value in {**places, **names}.items() for word in (f"--{name}", str(value))]
    with _running([sys.executable, "-m", "executors_app.agentctl", "serve", *words]) as process:
        eventually(ready.exists, timeout=30, describe="agentctl is ready")
        assert json.loads(ready.read_text())["pid"] == process.pid
        yield process


@contextmanager
def _bare() -> Iterator[subprocess.Popen[bytes]]:
    with _running([sys.executable, "-c", BARE]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process


@contextmanager
def _running(argv: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()
