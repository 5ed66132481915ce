"""What ``serve`` takes while nothing happens: memory and CPU of all its processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from kandev.databases import EMBEDDED_NAME
from tests import databases
from tests.bench.figures import Figure
from tests.bench.world import World
from tests.drills.process_groups import descendants
from tests.services import ROOT
from tests.waiting import eventually

MEMORY_BUDGET: Final = 300.0
"""Megabytes of all processes, shared memory counted once (PSS)."""
CPU_BUDGET: Final = 0.005
"""Seconds of CPU for each second."""
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


def of_serve(world: World, seconds: float, *, limited: bool) -> list[Figure]:
    """Measured for so many seconds, after half of them have passed."""
    data = world.home / "idle"
    data.mkdir(mode=0o700)
    databases.copy(world.migrated, data / EMBEDDED_NAME)
    env = os.environ | {"KANDEV_DATA_DIR": str(data)}
    with _running("manage.py", "serve", "--port", "0", env=env) as serve:
        eventually(lambda: len(descendants(serve.pid)) >= 3, timeout=60, describe="its processes run")
        time.sleep(seconds / 2)
        family = [serve.pid, *descendants(serve.pid)]
        with _running("-c", IMPORTED, env=env) as imported, _running("-c", POLLING, env=env) as bare:
            before, bare_before = _cpu(family), _cpu([bare.pid])
            time.sleep(seconds)
            cpu, bare_cpu = (_cpu(family) - before) / seconds, (_cpu([bare.pid]) - bare_before) / seconds
            memory, bare_memory = sum(map(_proportional_memory, family)), _proportional_memory(imported.pid)
    ram, busy = "idle control plane, memory", "idle control plane, CPU a second"
    polling = f"{len(family)} bare processes that poll once a second"
    return [
        Figure(ram, memory, "one process, same modules", bare_memory, "MB"),
        Figure(ram, memory, "the budget", MEMORY_BUDGET, "MB", limit=1.0 if limited else None),
        # What is measured in ticks may be none at all.
        Figure(busy, cpu, polling, len(family) * max(bare_cpu, TICK / seconds)),
        Figure(busy, cpu, "the budget", CPU_BUDGET, limit=1.0 if limited else None),
    ]


def _cpu(pids: Iterable[int]) -> float:
    """Seconds of CPU of some processes, and of those of their children that have ended."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total * TICK


def _proportional_memory(pid: int) -> float:
    """Megabytes of a process; what it shares with others counts in part."""
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 / 1e6 if found else 0.0


@contextmanager
def _running(*arguments: str, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has printed its first line."""
    argv, output = [sys.executable, *arguments], subprocess.PIPE
    with subprocess.Popen(argv, cwd=ROOT, env=env, stdout=output, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process
        finally:
            process.terminate()
