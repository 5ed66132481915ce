"""The test cluster is a Kubernetes: Pods run on claims, a Role limits, and nodes can be lost and found."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.cluster import IMAGE, STORAGE_CLASS, Cluster
from tests.kubernetes.nodes import Node
from tests.waiting import eventually

NAME = "writer"
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": NAME},
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": STORAGE_CLASS,
        "resources": {"requests": {"storage": "1Mi"}},
    },
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": NAME},
    "spec": {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{"operator": "Exists"}],
        "containers": [
            {
                "name": "main",
                "image": IMAGE,
                "command": ["sh", "-c", "echo started >>/data/ledger; exec sleep infinity"],
                "volumeMounts": [{"name": "work", "mountPath": "/data"}],
            }
        ],
        "volumes": [{"name": "work", "persistentVolumeClaim": {"claimName": NAME}}],
    },
}


@pytest.fixture
def writer(cluster: Cluster) -> Iterator[Node]:
    """Run a Pod with a volume; yield its node."""
    cluster.apply(CLAIM, POD)
    eventually(lambda: phase(cluster) == "Running", describe="the Pod runs")
    yield cluster.node_of(NAME)
    cluster.ensure()
    cluster.remove_sessions()


def phase(cluster: Cluster) -> str:
    """Return the Pod's phase."""
    return str(cluster.read("pods", NAME)["status"].get("phase"))


def condition(cluster: Cluster, node: Node) -> str:
    """Return whether a node is ready: *True*, *False* or *Unknown*."""
    conditions: list[dict[str, Any]] = cluster.read("nodes", node.name)["status"]["conditions"]
    return next(str(one["status"]) for one in conditions if one["type"] == "Ready")


def test_pod_writes_on_a_volume_that_this_machine_can_read(cluster: Cluster, writer: Node) -> None:
    assert (cluster.volume_directory(NAME) / "ledger").read_text() == "started\n"


def test_service_account_may_only_do_what_its_role_says(cluster: Cluster) -> None:
    may = {what: cluster.service_account_may(*what.split()) for what in ("create pods", "get nodes", "create services")}
    assert may == {"create pods": True, "get nodes": False, "create services": False}


def test_partitioned_node_is_unknown_and_its_pod_goes_on(cluster: Cluster, writer: Node) -> None:
    cluster.partition(writer)
    eventually(lambda: condition(cluster, writer) == "Unknown", describe="the node is unknown")
    assert [one["Names"] for one in writer.containers() if any(NAME in name for name in one["Names"])]
    cluster.heal(writer)
    eventually(lambda: condition(cluster, writer) == "True", describe="the node is ready")
    assert phase(cluster) == "Running"


def test_node_that_lost_its_power_comes_back_without_its_pods(cluster: Cluster, writer: Node) -> None:
    writer.stop()
    assert not writer.processes("kubelet")
    assert not [path for path in os.listdir("/sys/fs/cgroup") if path == writer.control_group]  # noqa: PTH208
    cluster.ensure()
    eventually(lambda: phase(cluster) == "Failed", timeout=120, describe="the Pod has ended")
    assert (cluster.volume_directory(NAME) / "ledger").read_text() == "started\n"
