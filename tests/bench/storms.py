"""A storm: many sessions that should run and do not, all at once, and what it does to whoever only looks.

The many are stand-ins that speak the wire over real sockets; beside them real agents on this machine.
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

from executors_app.agentctl.process import identity
from executors_app.models import Executor, ExecutorRunning
from sessions_app.domain.states import SessionState
from sessions_app.models import Intent, TaskSession
from sessions_app.services.status import session_status
from tests.bench.figures import Figure
from tests.bench.latencies import quantile
from tests.bench.world import World
from tests.supervisor import fake_agentctl_server, supervisor_process

PATIENCE = 600.0
SLOWER = 2.0
"""Times the idle p95 that a status may take in a storm."""
AT_ONCE = 20


@dataclass
class Storm:
    """What was seen of one."""

    idle: list[float] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)
    most_ordered: int = 0
    most_starting: int = 0
    started: int = 0
    seconds: float = 0.0


def of_many(world: World, count: int, real: int, *, limited: bool) -> list[Figure]:
    """All up in the end, bounded, and a status as quick as may be."""
    world.empty()
    with fake_agentctl_server.serving() as url:
        _fill(world, count, real)
        env = {
            **os.environ,
            "KANDEV_DATA_DIR": str(settings.KANDEV_DATA_DIR),
            "KANDEV_MAX_STARTS_PER_PASS": str(AT_ONCE),
            "KANDEV_LEASE_TTL": "30",
        }
        storm = Storm(idle=_looks(200))
        try:
            with supervisor_process.supervising(url, Path(world.home) / "storm.log", env):
                _watch(storm, url, count + real)
        finally:
            for execution in ExecutorRunning.objects.filter(runtime="local_standalone"):
                identity.kill_all(identity.find_marked(str(execution.id)), 10)
    assert storm.started == count, f"{storm.started} starts for {count}: nothing twice"
    assert storm.most_ordered <= AT_ONCE, f"{storm.most_ordered} starts were ordered at once"
    p95 = quantile(storm.idle, 0.95)
    row = f"status p95 while {count:,} + {real} start"
    return [
        Figure(row, quantile(storm.looks, 0.95), "status p95, idle", p95, limit=SLOWER if limited else None),
        Figure(f"{count:,} + {real} all up, a start", storm.seconds / (count + real), "status p95, idle", p95),
    ]


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
    """Seconds of so many statuses, each of another session."""
    rows = TaskSession.objects.select_related("task__team", "agent_profile", "executor").order_by("id")[:number]
    return [_seconds(lambda row=row: session_status(row)) for row in rows]  # type: ignore[misc]


def _seconds(look: Callable[[], object]) -> float:
    began = time.perf_counter()
    look()
    return time.perf_counter() - began


def _watch(storm: Storm, url: str, everybody: int) -> None:
    began = time.monotonic()
    while TaskSession.objects.exclude(launch_id="").count() < everybody:
        assert time.monotonic() - began < PATIENCE, "not all are up in time"
        ordered = Intent.objects.filter(kind="start", done_at=None, by=None).count()
        storm.most_ordered = max(storm.most_ordered, ordered)
        storm.looks += _looks(10)
    storm.seconds = time.monotonic() - began
    with urllib.request.urlopen(f"{url}/counts", timeout=10) as answer:
        counts = json.loads(answer.read())
    storm.started, storm.most_starting = counts["started"], counts["most"]
