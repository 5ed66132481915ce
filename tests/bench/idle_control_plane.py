"""Memory and CPU of an idle ``serve``, and how soon its supervisor notices a death."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from executors_app.models import ExecutorRunning
from kandev.databases import EMBEDDED_NAME
from sessions_app.board.services import tasks
from sessions_app.models import SessionEvent
from tests.bench.figures import Figure
from tests.bench.latencies import supervising
from tests.bench.world import World
from tests.drills.process_groups import descendants
from tests.migrated_database import copy_migrated
from tests.services import ROOT
from tests.waiting import eventually

MEMORY_BUDGET: Final = 300.0
"""Megabytes of all processes, counting shared memory once (PSS)."""
CPU_BUDGET: Final = 0.005
"""CPU seconds per second; docs/performance.md explains why the limit is a multiple of the floor."""
FLOOR_LIMIT: Final = 12.0
"""Maximum of CPU seconds, as a multiple of bare processes that poll."""
NOTICED_WITHIN: Final = 1.0
"""Seconds from the death of an agentctl to the supervisor's first write about it."""
AT_REST: Final = 5.0
"""Seconds after which the periodic checks of a supervisor pause."""
POLL_INTERVAL: Final = 0.002
TICK: Final = 1 / os.sysconf("SC_CLK_TCK")
IMPORTED: Final = """
import os, time, django
os.environ["DJANGO_SETTINGS_MODULE"] = "kandev.settings"
django.setup()
from sessions_app.management.commands.serve import preload
preload()
print("ready", flush=True)
time.sleep(600)
"""
POLLING: Final = """
import sqlite3, time
database = sqlite3.connect(":memory:")
print("ready", flush=True)
while True:
    database.execute("PRAGMA data_version").fetchone()
    time.sleep(1)
"""


def of_serve(home: Path, seconds: float, *, limited: bool) -> list[Figure]:
    """Measure for ``seconds``, after half as long to settle."""
    data = home / "idle"
    data.mkdir(mode=0o700)
    copy_migrated(data / EMBEDDED_NAME)
    env = os.environ | {"KANDEV_DATA_DIR": str(data)}
    with _running("manage.py", "serve", "--port", "0", env=env) as serve:
        eventually(lambda: len(descendants(serve.pid)) >= 3, timeout=60, describe="the processes of serve run")
        time.sleep(seconds / 2)
        family = [serve.pid, *descendants(serve.pid)]
        with _running("-c", IMPORTED, env=env) as imported, _running("-c", POLLING, env=env) as bare:
            before, bare_before = _cpu(family), _cpu([bare.pid])
            time.sleep(seconds)
            cpu, bare_cpu = _cpu(family) - before, _cpu([bare.pid]) - bare_before
            memory, bare_memory = sum(map(_proportional_memory, family)), _proportional_memory(imported.pid)
    ram, busy = "idle control plane, memory", "idle control plane, CPU a second"
    polling = f"{len(family)} bare processes that poll once a second"
    return [
        Figure(ram, memory, "one process, same modules", bare_memory, "MB"),
        Figure(ram, memory, "the budget", MEMORY_BUDGET, "MB", limit=1.0 if limited else None),
        Figure(busy, cpu / seconds, polling, len(family) * bare_cpu / seconds, limit=FLOOR_LIMIT if limited else None),
        Figure(busy, cpu / seconds, "the budget", CPU_BUDGET),
    ]


def of_a_death(world: World, rounds: int, *, limited: bool) -> list[Figure]:
    """Measure from SIGKILL to an idle session's agentctl until the log mentions it; figures are medians."""
    world.empty()
    task = world.task("Dies")
    task.save()
    taken: list[float] = []
    with supervising():
        session = tasks.create_session(world.user, task, world.profile, world.executor, policy="auto", has_agent=False)
        running, log = ExecutorRunning.objects.filter(session=session), SessionEvent.objects.filter(session=session)
        try:
            pid: int | None = None
            for _ in range(rounds):
                again = running.filter(status="ready", pid__isnull=False).exclude(pid=pid)
                eventually(again.exists, timeout=60, describe="the workspace's agentctl is ready")
                time.sleep(AT_REST)
                known, pid = log.count(), again.get().pid
                assert pid is not None
                began = time.perf_counter()
                os.kill(pid, signal.SIGKILL)
                while log.count() == known:
                    assert time.perf_counter() - began < 60, "the end was not noticed"
                    time.sleep(POLL_INTERVAL)
                taken.append(time.perf_counter() - began)
        finally:
            world.stop(session)
    row, limit = "idle control plane: a killed agentctl is noticed", 1.0 if limited else None
    return [Figure(row, statistics.median(taken), "at most", NOTICED_WITHIN, limit=limit)]


def _cpu(pids: Iterable[int]) -> float:
    """Return the CPU seconds of some processes and of their children that have ended."""
    total = 0.0
    for pid in pids:
        with suppress(OSError):
            # By thread, in nanoseconds: a tick of 10 ms is as much as two seconds of an idle system.
            total += (
                sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
            )
            ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]
            total += sum(map(int, ended)) * TICK
    return total


def _proportional_memory(pid: int) -> float:
    """Return the megabytes of a process; memory shared with others counts in part."""
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 / 1e6 if found else 0.0


@contextmanager
def _running(*arguments: str, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that has printed its first line."""
    argv, output = [sys.executable, *arguments], subprocess.PIPE
    with subprocess.Popen(argv, cwd=ROOT, env=env, stdout=output, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process
        finally:
            process.terminate()
