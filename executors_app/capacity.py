"""How many agents an executor has room for: its own setting, or what the machine's memory allows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from django.db.models import Q, QuerySet

from executors_app import plugins
from executors_app.models import Executor, ExecutorRunning
from executors_app.runtimes import SharesMachineMemory
from executors_app.wire.executions import ExecutorStatus
from executors_app.wire.exhaustion import raise_if_exhausted

MEMORY_OF_AN_AGENT: Final = 512 << 20
"""Bytes assumed for an agent with its agentctl and the programs it runs."""
MIN_AGENTS: Final = 8
"""Agents that any machine is assumed to have room for."""
LIVE_STATUSES: Final = (ExecutorStatus.STARTING, ExecutorStatus.READY)
MAY_RUN: Final = Q(status__in=LIVE_STATUSES) | Q(status=ExecutorStatus.ERROR, error_code="unreachable")
"""Executions that use room: also those of a place that does not answer, whose agents may still run."""
_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def agent_limit(executor: Executor) -> int | None:
    """Return how many agents may run there at once; None: no limit (each has its own machine, or it is remote)."""
    if executor.max_live is not None:
        return executor.max_live
    if shares_memory(executor.runtime):
        return agents_that_fit(machine_memory())
    return None


def shares_memory(runtime: str) -> bool:
    """Whether agents of the runtime use this machine's memory; False for an unknown runtime."""
    try:
        return isinstance(plugins.runtime(runtime), SharesMachineMemory)
    except plugins.UnknownPlugin:
        return False


def shares_machine_limit(executor: Executor) -> bool:
    """Whether the limit of an executor is that of this machine's memory, which it shares with others like it."""
    return executor.max_live is None and shares_memory(executor.runtime)


def agents_that_fit(memory: int) -> int:
    """Return how many agents fit into the given number of bytes."""
    return max(MIN_AGENTS, memory // MEMORY_OF_AN_AGENT)


def machine_memory() -> int:
    """Return the bytes of memory of this machine, or of the container that this process runs in."""
    total = next(int(line.split()[1]) << 10 for line in _lines("/proc/meminfo") if line.startswith("MemTotal:"))
    limits = [int(line) for path in _LIMITS for line in _lines(path) if line.strip().isdigit()]
    return min([total, *limits])


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError as error:
        raise_if_exhausted(error)
        return []


def executors_sharing_room(executor: Executor) -> QuerySet[Executor]:
    """Return the executors that share its limit: itself, or all of its host without their own limit."""
    if not shares_machine_limit(executor):
        return Executor.objects.filter(id=executor.id)
    names = [name for name in plugins.runtimes() if shares_memory(name)]
    return Executor.objects.filter(Q(id=executor.id) | Q(runtime__in=names, max_live=None, host=executor.host_id))


def live_executions(executors: Iterable[Executor] | QuerySet[Executor]) -> QuerySet[ExecutorRunning]:
    """Return executions there that may run or are starting and have an agent; a workspace alone takes no room."""
    return ExecutorRunning.objects.filter(MAY_RUN, executor__in=executors, session__has_agent=True)
