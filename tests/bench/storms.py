"""Many sessions that should run and do not, all at once, and how fast a status is read meanwhile.

Most are fake agentctls that speak the protocol over real sockets; beside them are real agents on this machine.
"""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from django.conf import settings

from executors_app.agentctl.process.guard_process import children_of, command_line_of
from executors_app.machine.process import execution_processes, identity
from executors_app.models import Executor, ExecutorRunning
from sessions_app.kernel.rules.states import SessionState
from sessions_app.models import Intent, Supervisor, TaskSession
from sessions_app.sessions.services.status import session_status
from tests.bench.bare_forks import bare_forks
from tests.bench.figures import Figure
from tests.bench.latencies import quantile
from tests.bench.launches import cpu_time, launcher_cpu
from tests.bench.world import World
from tests.supervisor import fake_agentctl_server, supervisor_process
from tests.waiting import eventually

LAUNCHER = "agentctl.launcher"
PATIENCE = 600.0
SLOWER = 2.0
"""Maximum of a status in a storm, as a multiple of the idle p95."""
IDLE_LOOKS = 1000
"""Idle statuses before the storm, and again after it: the machine's speed changes meanwhile."""
AT_ONCE = 20
CPU_BUDGET = 0.025
"""The aim for the CPU seconds of a start besides those of its agent; docs/performance.md explains why it is missed."""
BARE_STARTS = 5
FORKS_LIMIT = 7.0
"""Maximum CPU of agentctl and its guard, as a multiple of two bare forks."""


@dataclass
class Storm:
    """The observations of one storm."""

    idle: list[float] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)
    most_ordered: int = 0
    most_starting: int = 0
    started: int = 0
    seconds: float = 0.0
    supervisor_cpu: float = 0.0
    place_cpu: float = 0.0
    """CPU seconds of the launcher after its own start, and of all real agentctls and guards."""


def of_many(world: World, count: int, real: int, *, limited: bool) -> list[Figure]:
    """Measure a storm: all run in the end, within the limit, and statuses stay fast."""
    world.empty()
    with fake_agentctl_server.serving() as url:
        _fill(world, count, real)
        env = {
            **os.environ,
            "KANDEV_DATA_DIR": str(settings.KANDEV_DATA_DIR),
            "KANDEV_MAX_STARTS_PER_PASS": str(AT_ONCE),
            "KANDEV_LEASE_TTL": "30",
        }
        log = Path(world.home) / "storm.log"
        once = launcher_cpu(Path(world.home))
        storm = Storm(idle=_looks(IDLE_LOOKS))
        try:
            with supervisor_process.supervising(url, log, env) as supervisor:
                before = _cpu_after_imports(supervisor.pid)
                _watch(storm, url, count + real)
                storm.supervisor_cpu = cpu_time(supervisor.pid) - before
                launchers = _launchers(log)
                places = sum(map(cpu_time, [*launchers, *_real_agentctls_and_guards()]))
                storm.place_cpu = places - len(launchers) * once
            storm.idle += _looks(IDLE_LOOKS)
        finally:
            for execution in ExecutorRunning.objects.filter(runtime="local_standalone"):
                identity.kill_all(identity.find_marked(str(execution.id)), 10)
            Executor.objects.filter(id=world.executor.id).update(max_live=world.executor.max_live)
    assert storm.started == count, f"{storm.started} starts for {count} sessions"
    assert storm.most_ordered <= AT_ONCE, f"{storm.most_ordered} starts were requested concurrently"
    p95 = quantile(storm.idle, 0.95)
    deciding, running = storm.supervisor_cpu / (count + real), storm.place_cpu / real
    with bare_forks(Path(world.home) / "bare-forks") as measure:
        least = min(measure("start") for _ in range(BARE_STARTS))
    cpu_row = f"{count:,} + {real} start: CPU of a start"
    row = f"status p95 while {count:,} + {real} start"
    return [
        Figure(row, quantile(storm.looks, 0.95), "status p95, idle", p95, limit=SLOWER if limited else None),
        Figure(f"{count:,} + {real} all up, a start", storm.seconds / (count + real), "status p95, idle", p95),
        Figure(cpu_row, deciding + running, "25 ms", CPU_BUDGET),
        Figure(f"{cpu_row}, supervisor", deciding, "25 ms", CPU_BUDGET),
        Figure(
            f"{cpu_row}, launcher, agentctl, guard",
            running,
            "two bare forks: an HTTP answer, a program",
            least,
            limit=FORKS_LIMIT if limited else None,
        ),
    ]


def _cpu_after_imports(pid: int) -> float:
    """Wait until the supervisor has registered; return the CPU seconds used so far."""
    rows = Supervisor.objects.values_list("process", flat=True)
    eventually(
        lambda: any(process.get("pid") == pid for process in rows.all()),
        timeout=PATIENCE,
        describe="the supervisor has registered",
    )
    return cpu_time(pid)


def _launchers(log: Path) -> list[int]:
    """Return the pids of the launchers that write to this log."""
    return [pid for pid in identity.list_pids() if LAUNCHER in command_line_of(pid) and _writes_into(pid, log)]


def _writes_into(pid: int, log: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/fd/2").readlink() == log.resolve()
    except OSError:
        return False


def _real_agentctls_and_guards() -> list[int]:
    found = execution_processes.find_all_processes()
    ids = map(str, ExecutorRunning.objects.filter(runtime="local_standalone").values_list("id", flat=True))
    agentctls = [one.pid for key in ids if key in found for one in found[key].agentctl]
    return [pid for agentctl in agentctls for pid in (agentctl, *children_of(agentctl))]


def _fill(world: World, count: int, real: int) -> None:
    many = Executor.objects.get_or_create(name="fake agentctls", runtime="fake_agentctls")[0]
    Executor.objects.filter(id=world.executor.id).update(max_live=real + 1)
    for number in range(count + real):
        task = world.task(f"Storm {number}")
        task.save()
        executor = world.executor if number < real else many
        session = TaskSession.objects.create(
            task=task,
            agent_profile=world.profile,
            executor=executor,
            owner=world.user,
            state=SessionState.WAITING_FOR_INPUT,
            policy="auto",
        )
        execution = ExecutorRunning.objects.create(
            session=session, task=task, executor=executor, runtime=executor.runtime, status="ready"
        )
        TaskSession.objects.filter(id=session.id).update(agent_execution_id=execution.id)


def _looks(number: int) -> list[float]:
    """Return the seconds of ``number`` statuses, each of another session."""
    rows = TaskSession.objects.select_related("task__team", "agent_profile", "executor").order_by("id")[:number]
    return [_seconds(lambda row=row: session_status(row)) for row in rows]  # type: ignore[misc]


def _seconds(look: Callable[[], object]) -> float:
    began = time.perf_counter()
    look()
    return time.perf_counter() - began


def _watch(storm: Storm, url: str, expected: int) -> None:
    began = time.monotonic()
    while TaskSession.objects.exclude(launch_id="").count() < expected:
        assert time.monotonic() - began < PATIENCE, "not all agents run in time"
        ordered = Intent.objects.filter(kind="start", done_at=None, by=None).count()
        storm.most_ordered = max(storm.most_ordered, ordered)
        storm.looks += _looks(10)
    storm.seconds = time.monotonic() - began
    with urllib.request.urlopen(f"{url}/counts", timeout=10) as answer:
        counts = json.loads(answer.read())
    storm.started, storm.most_starting = counts["started"], counts["most"]
