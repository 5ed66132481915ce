"""Sessions in Pods, on the stand-in for a cluster: it answers as fast as memory does, so only ratios mean something.

The floors are what its API server needs for the least: one list of all Pods, or a bare Pod until it runs.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from executors_app.machine.process import identity
from executors_app.models import AgentProfile, Executor, ExecutorRunning
from executors_app.runtimes.kubernetes import names
from executors_app.runtimes.kubernetes.cluster import PODS, Cluster, open_cluster
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
from tests.kubernetes.pod_deployment import AGENT_HOME
from tests.kubernetes.standin.cluster import StandIn
from tests.kubernetes.standin.harness import KubernetesHarness
from tests.waiting import eventually

PATIENCE = 300.0
_POLL = 0.02


def of_a_namespace(world: World, pods: int, objects: int, rounds: int) -> list[Figure]:
    """Measure ``pods`` sessions in real Pods, beside ``objects`` Pods that no node has taken."""
    world.empty()
    with _harness(world) as harness:
        start = asyncio.run(_starts(harness, rounds))
    with _harness(world) as harness, _executor(harness.config) as executor:
        try:
            _start_sessions(world, executor, pods)
            restart = asyncio.run(_restarts(pods, rounds))
            _add_objects(world, executor, harness.cluster, objects)
            expected = Counter({Observed.ALIVE: pods, Observed.UNKNOWN: objects})
            sweep = asyncio.run(_sweeps(harness, expected, rounds))
        finally:
            world.empty()
    return [
        Figure("session in a Pod, stand-in: start", start[0], "a bare Pod", start[1]),
        Figure(f"restart, {pods} Pods attached again, stand-in", restart[0], "one check of all", restart[1]),
        Figure(f"sweep of {pods + objects} Pods, {pods} of them real, stand-in", sweep[0], "one list", sweep[1]),
    ]


@contextmanager
def _harness(world: World) -> Iterator[KubernetesHarness]:
    """Yield the harness of an empty cluster."""
    with tempfile.TemporaryDirectory(dir=world.home) as directory, StandIn().serving() as cluster:
        yield KubernetesHarness(Path(world.repository.path), cluster, Path(directory))


@contextmanager
def _executor(config: dict[str, Any]) -> Iterator[Executor]:
    made = Executor.objects.create(name="pods of a stand-in", runtime=RUNTIME.name, config=config)
    try:
        yield made
    finally:
        made.delete()


async def _starts(harness: KubernetesHarness, rounds: int) -> list[float]:
    """Return the best seconds of a launch until agentctl answers, and of a bare Pod until it runs."""
    config = read_kubernetes_config(harness.config)

    async def launched() -> None:
        await RUNTIME.launch(spec_for(harness))

    async def ran() -> None:
        async with open_cluster(config.cluster, config.namespace) as cluster:
            await _run_bare_pod(cluster, config)

    return list(map(min, await in_turn(rounds, launched, ran)))


async def _run_bare_pod(cluster: Cluster, config: KubernetesConfig) -> None:
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


def _add_objects(world: World, executor: Executor, cluster: StandIn, count: int) -> None:
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
    cluster.add_objects([_pending_pod(session) for session in sessions])


def _pending_pod(session: TaskSession) -> dict[str, Any]:
    labels = names.execution_labels(str(session.agent_execution_id), str(session.id), str(session.task_id))
    container = {"name": names.AGENTCTL, "image": "kandev-agentctl:test"}
    return {
        "metadata": {"name": names.pod_name(str(session.id)), "labels": labels},
        "spec": {"restartPolicy": "Never", "containers": [container]},
        "status": {"phase": "Pending"},
    }


async def _sweeps(harness: KubernetesHarness, expected: Counter[Observed], rounds: int) -> list[float]:
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
