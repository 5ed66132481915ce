"""Time from the agent's output to the event log, through a real supervisor, agentctl and demo agent."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sqlite3
import statistics
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings

from sessions_app.board.services import tasks
from sessions_app.kernel import wakeups
from tests.bench.bare import BareTable
from tests.bench.figures import Figure
from tests.bench.world import World
from tests.preloaded import PreloadedProcess

WITHIN = 60.0
"""Timeout in seconds for the start and the turn."""
QUERY = "SELECT seq, name, payload, at FROM session_events WHERE session_id = ? AND seq > ? ORDER BY seq"


def of_a_turn(world: World, seconds: float) -> list[Figure]:
    """Measure, while the agent works, from the journal's time of each tick until another process has read it."""
    world.empty()
    task = world.task("Work")
    task.save()
    with supervising():
        prompt = f"work {seconds:g}"
        session = tasks.create_session(world.user, task, world.profile, world.executor, prompt=prompt)
        try:
            waited, commits = _watch(session.id, world.home)
        finally:
            world.stop(session)
    row, floor = f"agent to event log, {{}} of {len(waited)}", "one bare commit, {}"
    return [
        Figure(row.format(name), quantile(waited, share), floor.format(name), quantile(commits, share))
        for name, share in (("p50", 0.5), ("p95", 0.95))
    ]


@contextmanager
def supervising(end: int = signal.SIGTERM) -> Iterator[None]:
    with PreloadedProcess(["manage.py", "supervise"], env=os.environ, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.send_signal(end)


def _watch(session_id: uuid.UUID, home: Path) -> tuple[list[float], list[float]]:
    """Return the seconds for each tick, and those of a bare commit in each pause between them."""
    waited: list[float] = []
    commits: list[float] = []
    deadline, seq, over = time.monotonic() + WITHIN, 0, False
    listener, table = wakeups.open_listener(), BareTable(home / "latency.sqlite3")
    reader = sqlite3.connect(f"file:{settings.DATABASES['default']['NAME']}?mode=ro", uri=True)
    try:
        while not over:
            assert time.monotonic() < deadline, "the agent's turn did not end in time"
            select.select([listener], [], [], 0.25)
            drain(listener)
            rows = reader.execute(QUERY, (session_id.hex, seq)).fetchall()
            now = time.time()
            seq = rows[-1][0] if rows else seq
            over = any(name == "session.run.completed" for _, name, _, _ in rows)
            ticks = [now - _time(at) for _, _, payload, at in rows if _is_tick(json.loads(payload))]
            waited += ticks
            if ticks:
                began = time.perf_counter()
                table.insert(1)
                commits.append(time.perf_counter() - began)
    finally:
        reader.close()
        table.close()
        wakeups.close_listener(listener)
    return waited, commits


def drain(listener: socket.socket) -> None:
    """Discard the wake-ups received so far."""
    with suppress(BlockingIOError):
        while True:
            listener.recv(16)


def _is_tick(payload: Mapping[str, Any]) -> bool:
    return str(payload.get("text") or payload.get("append") or "").startswith("tick ")


def _time(at: str) -> float:
    """Convert a time as Django stores it in SQLite to seconds since the epoch."""
    return datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()


def quantile(values: Sequence[float], share: float) -> float:
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]
