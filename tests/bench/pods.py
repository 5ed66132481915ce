"""Sessions in Pods: on a real cluster where one can be started, else on the stand-in; the rows say which.

The floors are what its API server needs for the least: one list of all Pods, or a bare Pod until it runs. The stand-in
answers as fast as memory does, so its ratios are larger, and no absolute figure means anything.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from executors_app.machine.process import identity
from executors_app.models import AgentProfile, Executor, ExecutorRunning
from executors_app.runtimes.kubernetes import names
from executors_app.runtimes.kubernetes.cluster import PODS, open_cluster
from executors_app.runtimes.kubernetes.cluster import Cluster as Namespace
from executors_app.runtimes.kubernetes.config import KubernetesConfig, read_kubernetes_config
from executors_app.runtimes.kubernetes.runtime import RUNTIME
from executors_app.wire.executions import Observed
from sessions_app.board.services import tasks
from sessions_app.kernel.rules.states import SessionState
from sessions_app.models import Task, TaskSession, Turn
from sessions_app.recovery.sweep.sweep_pass import SweepRun, SweepScope, run_sweep
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from tests.bench.figures import Figure, in_turn, seconds_of
from tests.bench.latencies import supervising
from tests.bench.restarts import come_back, lose_supervisor
from tests.bench.world import World
from tests.executors.harness import spec_for
from tests.executors.launches import TOKEN
from tests.kubernetes import build
from tests.kubernetes.cluster import NAMESPACE, Cluster
from tests.kubernetes.harness import KubernetesHarness as RealHarness
from tests.kubernetes.pod_deployment import AGENT_HOME
from tests.kubernetes.standin.cluster import StandIn
from tests.kubernetes.standin.harness import KubernetesHarness
from tests.waiting import eventually

PATIENCE = 300.0
_POLL = 0.02


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum ratios of the three rows to their floors."""

    start: float
    restart: float
    sweep: float


STANDIN_LIMITS: Final = Limits(start=20, restart=3, sweep=25)
REAL_LIMITS: Final = Limits(start=4, restart=3, sweep=10)
Harness = KubernetesHarness | RealHarness


def of_a_namespace(
    world: World, pods: int, objects: int, rounds: int, *, limited: bool, is_real: bool = False
) -> list[Figure]:
    """Measure ``pods`` sessions in real Pods, beside ``objects`` Pods that no node has taken.

    ``is_real``: on a cluster of two nodes, which takes minutes to start, instead of on the stand-in.
    """
    world.empty()
    with _clusters(world, is_real=is_real) as empty_cluster:
        with empty_cluster() as harness:
            start = asyncio.run(_starts(harness, rounds))
        with empty_cluster() as harness, _executor(harness.config) as executor:
            try:
                _start_sessions(world, executor, pods)
                restart = asyncio.run(_restarts(pods, rounds))
                _add_objects(world, executor, harness, objects)
                expected = Counter({Observed.ALIVE: pods, Observed.DEAD: objects})  # what no node took has never run
                sweep = asyncio.run(_sweeps(harness, expected, rounds))
            finally:
                world.empty()
    where, limits = "stand-in", STANDIN_LIMITS
    if is_real:
        where, limits = f"Kubernetes {build.VERSION}", REAL_LIMITS
    rows = (
        (f"session in a Pod, {where}: start", start, "a bare Pod", limits.start),
        (f"restart, {pods} Pods attached again, {where}", restart, "one check of all", limits.restart),
        (f"sweep of {pods + objects} Pods, {pods} of them real, {where}", sweep, "one list", limits.sweep),
    )
    return [
        Figure(row, taken[0], floor, taken[1], limit=limit if limited else None) for row, taken, floor, limit in rows
    ]


@contextmanager
def _clusters(world: World, *, is_real: bool) -> Iterator[Callable[[], AbstractContextManager[Harness]]]:
    """Yield what makes a harness of an empty cluster."""
    if not is_real:
        yield lambda: _standin(world)
        return
    cluster = Cluster(Path(tempfile.mkdtemp(prefix="kandev-kubernetes-", dir="/tmp")))
    try:
        cluster.start(ends_with_us=True)
        yield lambda: _emptied(RealHarness(Path(world.repository.path), cluster))
    finally:
        cluster.close()


@contextmanager
def _standin(world: World) -> Iterator[Harness]:
    with tempfile.TemporaryDirectory(dir=world.home) as directory, StandIn().serving() as cluster:
        yield KubernetesHarness(Path(world.repository.path), cluster, Path(directory))


@contextmanager
def _emptied(harness: RealHarness) -> Iterator[Harness]:
    try:
        yield harness
    finally:
        harness.close()


@contextmanager
def _executor(config: dict[str, Any]) -> Iterator[Executor]:
    made = Executor.objects.create(name="pods", runtime=RUNTIME.name, config=config)
    try:
        yield made
    finally:
        made.delete()


async def _starts(harness: Harness, rounds: int) -> list[float]:
    """Return the best seconds of a launch until agentctl answers, and of a bare Pod until it runs."""
    config = read_kubernetes_config(harness.config)

    async def launched() -> None:
        await RUNTIME.launch(spec_for(harness))

    async def ran() -> None:
        async with open_cluster(config.cluster, config.namespace) as cluster:
            await _run_bare_pod(cluster, config)

    return list(map(min, await in_turn(rounds, launched, ran)))


async def _run_bare_pod(cluster: Namespace, config: KubernetesConfig) -> None:
    name = f"bare-{uuid.uuid4()}"
    container = {"name": "bare", "image": config.image, "imagePullPolicy": "Never", "command": ["sleep", "600"]}
    body = {"metadata": {"name": name}, "spec": {"restartPolicy": "Never", "containers": [container]}}
    await cluster.create(PODS, {"apiVersion": "v1", "kind": "Pod", **body})
    while ((await cluster.find(PODS, name)) or {})["status"]["phase"] != "Running":  # noqa: ASYNC110  (as the runtime)
        await asyncio.sleep(_POLL)


def _start_sessions(world: World, executor: Executor, count: int) -> None:
    """Start sessions of which each has had a turn; their supervisor is killed then."""
    profile = AgentProfile.objects.create(
        name="demo in Pods",
        agent_type="demo",
        command=["kandev-demo-agent"],
        env={"KANDEV_DEMO_AGENT_HOME": AGENT_HOME},
    )
    with supervising(signal.SIGKILL):
        for number in range(count):
            task = world.task(f"In a Pod {number}")
            task.save()
            tasks.create_session(world.user, task, profile, executor, prompt="remember heron", policy="auto")
        ended = Turn.objects.filter(session__executor=executor, state="completed")
        eventually(lambda: ended.count() == count, timeout=PATIENCE, describe=f"{count} turns have ended")


async def _restarts(count: int, rounds: int) -> list[float]:
    """Return the best seconds until a new supervisor has attached all again, and of one check of all."""
    taken = [await _restart(count) for _ in range(rounds)]
    return list(map(min, zip(*taken, strict=True)))


async def _restart(count: int) -> tuple[float, float]:
    registry = ExecutionRegistry()
    try:
        await registry.database(lose_supervisor)
        look = await seconds_of(lambda: run_sweep(registry, SweepScope("boot", dry_run=True), set()))
        back = await seconds_of(lambda: come_back(registry))
        assert len(registry.streams) == count, f"{len(registry.streams)} of {count} are attached"
    finally:
        await registry.release_all()
        await registry.close()
    return back, look


def _add_objects(world: World, executor: Executor, harness: Harness, count: int) -> None:
    """Add sessions whose Pods are objects that no node has taken."""
    made = [world.task(f"Waits for a node {number}") for number in range(count)]
    Task.objects.bulk_create(made)
    sessions = [
        TaskSession(
            task=task,
            agent_profile=world.profile,
            executor=executor,
            agent_execution_id=uuid.uuid4(),
            owner=world.user,
            launch_id="fake",
            state=SessionState.WAITING_FOR_INPUT,
        )
        for task in made
    ]
    TaskSession.objects.bulk_create(sessions)
    ExecutorRunning.objects.bulk_create(
        ExecutorRunning(
            id=session.agent_execution_id,
            session=session,
            task=session.task,
            executor=executor,
            runtime=executor.runtime,
            host_id=identity.host_id(),
            auth_token=TOKEN,
            status=ExecutorRunning.Status.READY,
        )
        for session in sessions
    )
    objects = [_pending_pod(session) for session in sessions]
    if isinstance(harness, RealHarness):
        for one in objects:
            harness.cluster.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", one)
    else:
        harness.cluster.add_objects(objects)


def _pending_pod(session: TaskSession) -> dict[str, Any]:
    labels = names.execution_labels(str(session.agent_execution_id), str(session.id), str(session.task_id))
    container = {"name": names.AGENTCTL, "image": "kandev-agentctl:test"}
    return {
        "metadata": {"name": names.pod_name(str(session.id)), "labels": labels},
        "spec": {"restartPolicy": "Never", "containers": [container], "schedulerName": "nobody"},
        "status": {"phase": "Pending"},
    }


async def _sweeps(harness: Harness, expected: Counter[Observed], rounds: int) -> list[float]:
    """Return the best seconds of a dry sweep, and of one list of the namespace's Pods."""
    registry, config = ExecutionRegistry(), read_kubernetes_config(harness.config)

    async def swept() -> None:
        result: SweepRun = await run_sweep(registry, SweepScope("command", dry_run=True), set())
        assert Counter(item.seen.observed for item in result.decided) == expected

    async def listed() -> None:
        async with open_cluster(config.cluster, config.namespace) as cluster:
            found, _ = await cluster.list_all(PODS)
        assert len(found) == expected.total()

    try:
        return list(map(min, await in_turn(rounds, swept, listed)))
    finally:
        await registry.release_all()
        await registry.close()
