"""The overhead of a workflow node, and the time to check a workflow's text beside reading it."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import yaml

from executors_app.machine.process import identity
from executors_app.models import ExecutorRunning
from sessions_app.workflows.language.limits import MAX_NODES
from sessions_app.workflows.loader import client
from sessions_app.workflows.models import NodeRun, WorkflowRun
from sessions_app.workflows.services.runs import start_run
from tests.bench.bare import BareTable
from tests.bench.bare_forks import bare_forks
from tests.bench.figures import Figure, in_turn
from tests.bench.latencies import supervising
from tests.bench.world import World
from tests.waiting import eventually

WITHIN: Final = 240.0
"""Timeout in seconds for the whole run, including the start of its workspace."""
POLL_INTERVAL: Final = 0.2
LIMIT: Final = 2.2
"""Maximum, as a multiple of its forks, syncs and commit; docs/performance.md explains it."""


def of_nodes(world: World, nodes: int, *, limited: bool) -> list[Figure]:
    """Measure from the beginning of one node to that of the next, through supervisor and agentctl; medians."""
    world.empty()
    _let_be_staff(world, True)  # shells beside the control plane require it
    table = BareTable(world.home / "workflows.sqlite3")
    with supervising():
        run, _ = start_run(
            world.user, team=world.team, text=_chain(nodes), repository=world.repository, executor=world.executor
        )
        try:
            bare, guarded = _watch(run, table, world.home)
            began = NodeRun.objects.filter(run=run, kind="shell").order_by("position")
            times = [row.started_at for row in began if row.started_at]
        finally:
            _end(run)
            table.close()
            _let_be_staff(world, False)
    assert len(times) == nodes
    each = [(later - earlier).total_seconds() for earlier, later in pairwise(times)]
    row, floor, seconds = f"workflow, each of {nodes} shell nodes", statistics.median(bare), statistics.median(each)
    least, limit = statistics.median(guarded), LIMIT if limited else None
    return [
        Figure(row, seconds, "`sh -c true` and a bare commit", floor),
        Figure(row, seconds, "its forks, syncs and commit", least, limit=limit),
    ]


def _let_be_staff(world: World, staff: bool) -> None:
    world.user.is_staff = staff
    world.user.save(update_fields=["is_staff"])


def of_texts(rounds: int) -> list[Figure]:
    """Measure from a text to its problems and its drawing, in the loading process; figures are minima."""
    texts = {f"{MAX_NODES:,} nodes": _chain(MAX_NODES), "800 kB of {{": _chain(1, "{{" * 400_000)}
    figures = []
    for name, text in texts.items():
        check, bare = partial(client.check_isolated, text), partial(_events, text)
        check()  # starts the process
        checked, read = map(min, asyncio.run(in_turn(rounds, check, bare)))
        figures.append(Figure(f"workflow, a text of {name} checked", checked, "its YAML alone", read))
    return figures


def _events(text: str) -> None:
    for _ in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        pass


def _chain(nodes: int, script: str = "true") -> str:
    shells = [{"id": f"s{n}", "type": "shell", "data": {"script": script}} for n in range(nodes)]
    edges = [{"source": f"s{n}", "target": f"s{n + 1}"} for n in range(nodes - 1)]
    return json.dumps({"version": 3, "metadata": {"name": "chain"}, "nodes": shells, "edges": edges})


def _watch(run: WorkflowRun, table: BareTable, home: Path) -> tuple[list[float], list[float]]:
    """Wait for the end of the run, and measure meanwhile; return the seconds of both floors."""
    bare, guarded, deadline = list[float](), list[float](), time.monotonic() + WITHIN
    with bare_forks(home / "bare-forks") as measure:
        while not WorkflowRun.objects.get(id=run.id).is_over:
            assert time.monotonic() < deadline, "the run did not end in time"
            began = time.perf_counter()
            subprocess.run(["sh", "-c", "true"], check=True)
            committing = time.perf_counter()
            table.insert(1)
            ended = time.perf_counter()
            bare.append(ended - began)
            guarded.append(ended - committing + measure("script"))
            time.sleep(POLL_INTERVAL)
    assert WorkflowRun.objects.get(id=run.id).state == "succeeded"
    return bare, guarded


def _end(run: WorkflowRun) -> None:
    """End everything of the run, so that the next part finds no task."""
    executions = ExecutorRunning.objects.filter(task_id=run.task_id)
    try:
        eventually(
            lambda: not executions.exclude(status="stopped").exists(), timeout=60, describe="all executions are stopped"
        )
    finally:
        for execution in executions:
            identity.kill_all(identity.find_marked(str(execution.id)), 10)
        WorkflowRun.objects.filter(id=run.id).delete()
