"""A start of agentctl and an idle session on this machine: forked by the launcher, beside an executed one."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from executors_app.agentctl.process.guard_process import children_of
from executors_app.agentctl_client.client import AgentctlClient
from executors_app.machine import agentctl_process
from executors_app.machine.listeners import AgentctlListener
from executors_app.machine.process import execution_processes, identity, spawning
from executors_app.wire import socket_urls
from executors_app.wire.protocol import EXECUTION_MARKER
from tests.bench.figures import Figure
from tests.services import ROOT

BUDGET = 12.0
"""Megabytes of private memory for agentctl and guard of an idle session."""
DEMO_AGENT = (sys.executable, "-I", str(ROOT / "executors_app" / "demo_agent"))
BARE_FORK = """
import gc, os, time
import aiohttp.web, orjson
gc.collect()
gc.freeze()
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(600)
"""
SESSIONS_OF_BUDGET, DENSE_BUDGET = 500, 6 * 2**30 / 1e6
"""That many idle sessions must fit into that many megabytes."""
SMALL_AGENT = """
while read -r line; do
    id=${line#*'"id":'}
    case $line in
    *'"initialize"'*) result='{"protocolVersion":1,"agentCapabilities":{}}' ;;
    *) result='{"sessionId":"one"}' ;;
    esac
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\\n' "${id%%,*}" "$result"
done
"""
Start = Callable[[list[str], dict[str, str], int], int]


@dataclass(slots=True)
class _Measured:
    """One session: the time of its start in seconds, and its private memory in megabytes."""

    answered: float
    cpu: float
    private: float
    pids: tuple[int, ...]
    """Process ids of agentctl and guard."""


def of_idle_sessions(home: Path, sessions: int, *, limited: bool) -> list[Figure]:
    """Measure ``sessions`` idle sessions at once, without their demo agents; figures are medians."""
    with _sessions(home, 1, _forked):  # lets the launcher import everything
        pass
    with _sessions(home, sessions, _forked) as forked:
        pass
    with _sessions(home, sessions, _executed) as executed:
        pass
    with _bare_fork() as pid:
        bare = private_memory(pid)
    ours = median(one.private for one in forked)
    row = "idle session: agentctl and guard, private"
    answered = [median(one.answered for one in group) for group in (forked, executed)]
    cpu = [median(one.cpu for one in group) for group in (forked, executed)]
    return [
        Figure(row, ours, "bare forked interpreter", bare, "MB"),
        Figure(row, ours, "agentctl and guard, executed", median(one.private for one in executed), "MB"),
        Figure(row, ours, "the budget", BUDGET, "MB", limit=1.0 if limited else None),
        Figure("agentctl: order to first answer", answered[0], "the same, executed", answered[1]),
        Figure("agentctl: CPU to first answer", cpu[0], "the same, executed", cpu[1]),
    ]


def of_a_dense_machine(home: Path, sessions: int, *, limited: bool) -> list[Figure]:
    """Measure ``sessions`` idle sessions at once with shared memory and page tables, but without their agents."""
    with _sessions(home, sessions, _forked, ["/bin/sh", "-c", SMALL_AGENT]) as started:
        pids = [pid for one in started for pid in one.pids]
        launcher = agentctl_process._LAUNCHER._process
        assert launcher is not None
        used = sum(map(_whole_memory, [*pids, launcher.pid]))
    budget = DENSE_BUDGET * sessions / SESSIONS_OF_BUDGET
    row = f"{sessions:,} idle sessions, agents not counted"
    return [Figure(row, used, "6 GiB for 500", budget, "MB", limit=1.0 if limited else None)]


def _whole_memory(pid: int) -> float:
    """Return the megabytes of a process: private memory, its share of common memory, and its page tables."""
    numbers = [Path(f"/proc/{pid}/{name}").read_text() for name in ("smaps_rollup", "status")]
    kib = re.findall(r"^(?:Pss|VmPTE):\s+(\d+) kB", "\n".join(numbers), re.MULTILINE)
    return sum(map(int, kib)) * 1024 / 1e6


def private_memory(pid: int) -> float:
    """Return the megabytes that only this process maps."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(kib) for kib in re.findall(r"^Private_\w+:\s+(\d+) kB", rollup, re.MULTILINE)) * 1024 / 1e6


def _forked(argv: list[str], environment: dict[str, str], log: int) -> int:
    return agentctl_process._LAUNCHER.fork(argv, environment, log, log)


def _executed(argv: list[str], environment: dict[str, str], log: int) -> int:
    return agentctl_process.start_detached(argv, environment=environment, log=log)


@contextmanager
def _sessions(home: Path, count: int, start: Start, agent: Sequence[str] = DEMO_AGENT) -> Iterator[list[_Measured]]:
    """Start the sessions one after another, and measure their memory when all are running."""
    started: list[tuple[str, int, float, float]] = []
    try:
        for _ in range(count):
            execution = str(uuid.uuid4())
            started.append((execution, *asyncio.run(_start_session(home / execution, execution, start, agent))))
        time.sleep(1)  # let them become idle
        yield [_measure(pid, answered, cpu) for _, pid, answered, cpu in started]
    finally:
        found = execution_processes.find_all_processes()
        ours = [found[execution] for execution, *_ in started if execution in found]
        identity.kill_all([process for one in ours for process in (*one.agentctl, *one.others)], 30)


async def _start_session(place: Path, execution: str, start: Start, agent: Sequence[str]) -> tuple[int, float, float]:
    place.mkdir(mode=0o700)
    token, ready, socket = place / "token", place / "ready.json", place / "socket"
    token.write_text(secret := uuid.uuid4().hex)
    places = {"workspace": place, "state-dir": place / "state", "token-file": token, "ready-file": ready}
    names = {"session-id": str(uuid.uuid4()), "execution-id": execution, "listen": socket_urls.unix_url(socket)}
    words = [word for name, value in {**places, **names}.items() for word in (f"--{name}", str(value))]
    marker = {
        EXECUTION_MARKER: execution,
        spawning.NO_LEFTOVERS_VARIABLE: "1",
    }  # as for a launch that has found no processes
    environment = spawning.build_environment({"PYTHONPATH": str(ROOT)}, marker)
    log = os.open(place / "log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    began = time.perf_counter()
    pid = start([sys.executable, "-P", "-m", execution_processes.AGENTCTL_MODULE, "serve", *words], environment, log)
    while not ready.exists():  # noqa: ASYNC110  (quickly)
        await asyncio.sleep(0.001)
    client = AgentctlClient(AgentctlListener(socket_urls.unix_url(socket), identity.identify(pid)), secret, execution)
    await client.status()
    answered, cpu = time.perf_counter() - began, cpu_time(pid)
    os.close(log)
    order = {"launch_id": "launch-1", "argv": list(agent), "env": {"KANDEV_DEMO_AGENT_HOME": str(place / "agent")}}
    rest = {"driver": "acp", "strategy": "fresh", "mcp_servers": [], "permission_mode": "ask", "cwd": str(place)}
    await client.start_agent({**order, **rest}, 60)
    return pid, answered, cpu


def launcher_cpu(home: Path) -> float:
    """Return the CPU seconds of a launcher's own start and its first fork; a supervisor needs one launcher."""
    launcher = agentctl_process._Launcher()
    with _sessions(home, 1, lambda argv, environment, log: launcher.fork(argv, environment, log, log)):
        assert launcher._process is not None
        used = cpu_time(launcher._process.pid)
    assert launcher._connection is not None
    launcher._connection.close()  # which ends it
    return used


def cpu_time(pid: int) -> float:
    """Return the CPU seconds of all threads of a process."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def _measure(agentctl: int, answered: float, cpu: float) -> _Measured:
    """Measure agentctl and its child, the guard. The agent is a child of the guard."""
    pids = (agentctl, *children_of(agentctl))
    return _Measured(answered, cpu, sum(map(private_memory, pids)), pids)


@contextmanager
def _bare_fork() -> Iterator[int]:
    """Yield the pid of an idle child of a process that has imported the libraries."""
    with subprocess.Popen([sys.executable, "-c", BARE_FORK], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            yield child
        finally:
            parent.kill()
            identity.kill_all([found for found in [identity.identify(child)] if found], 5)
