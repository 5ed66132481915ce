"""What one look at a namespace costs, however many sessions it has."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from executors_app.runtimes.kubernetes import names
from executors_app.runtimes.kubernetes.cluster import PODS
from executors_app.runtimes.kubernetes.config import KubernetesConfig
from executors_app.runtimes.kubernetes.observation import judge, list_namespace
from executors_app.runtimes.kubernetes.pod_state import Pod
from tests.kubernetes.objects import execution_facts, pod_object
from tests.kubernetes.test_volumes import ENDED, RUNNING, MemoryCluster

STATES = {
    "ended": pod_object(ENDED, ENDED, phase="Failed"),
    "terminating on a lost node": pod_object(RUNNING, ENDED, deleted=True),
    "pending": pod_object({"waiting": {}}, {"waiting": {}}, node="", phase="Pending"),
    "absent": None,
}


class CountingCluster(MemoryCluster):
    """Counts what is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def list_all(self, kind: str, *options: Any) -> Any:
        self.asked.append(f"list {kind}")
        return await super().list_all(kind, *options)

    async def find(self, kind: str, name: str) -> Any:
        self.asked.append(f"get {kind}")
        return await super().find(kind, name)

    async def is_out_of_service(self, node: str) -> bool:
        self.asked.append(f"get node {node}")
        return True

    async def namespace_uid(self) -> str:
        self.asked.append("get namespace")
        return self.uid


async def look(pod: Pod | None, sessions: int) -> tuple[list[str], set[str]]:
    """Observe so many sessions in that state; return what was asked, and the reasons."""
    cluster: Any = CountingCluster()
    facts = []
    for number in range(sessions):
        owner, execution = f"session-{number}", f"execution-{number}"
        facts.append(execution_facts(id=execution, session_id=owner))
        if pod is not None:
            entry = copy.deepcopy(dict(pod.entry))
            labels = names.execution_labels(execution, owner, "")
            entry["metadata"] |= {"name": names.pod_name(owner), "uid": owner, "labels": labels}
            cluster.objects[PODS, names.pod_name(owner)] = entry
    known = await list_namespace(cluster, facts)
    seen = [await judge(KubernetesConfig(), one, known, 1.0) for one in facts]
    return sorted(cluster.asked), {one.reason for one in seen}


async def test_pod_that_no_node_has_taken_runs_nothing() -> None:
    """Its session shows why it waits, instead of an agent that may still work."""
    _, why = await look(pod_object(node="", phase="Pending"), 1)
    assert why == {"pod_never_ran"}


async def test_pod_that_a_node_has_taken_is_unknown_until_the_node_says_more() -> None:
    _, why = await look(pod_object(phase="Pending"), 1)
    assert why == {"pod_pending"}


@pytest.mark.parametrize("state", STATES)
async def test_sweep_of_200_pods_asks_the_cluster_no_more_than_one_of_a_single_pod(state: str) -> None:
    one, why = await look(STATES[state], 1)
    assert await look(STATES[state], 200) == (one, why)
    assert one.count("list pods") == 1
