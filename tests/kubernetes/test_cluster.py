"""The test cluster is a Kubernetes: Pods run on claims, and a Role limits what is allowed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.cluster import IMAGE, STORAGE_CLASS, Cluster
from tests.waiting import eventually

pytestmark = pytest.mark.any_database

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
def writer(cluster: Cluster) -> Iterator[None]:
    """Run a Pod with a volume."""
    cluster.apply(CLAIM, POD)
    eventually(lambda: phase(cluster) == "Running", describe="the Pod runs")
    yield
    cluster.remove_sessions()


def phase(cluster: Cluster) -> str:
    """Return the Pod's phase."""
    return str(cluster.read("pods", NAME)["status"].get("phase"))


def test_pod_writes_on_a_volume_that_this_machine_can_read(cluster: Cluster, writer: None) -> None:
    ledger = cluster.volume_directory(NAME) / "ledger"
    eventually(lambda: ledger.exists() and ledger.read_text() == "started\n", describe="the Pod has written")


def test_service_account_may_only_do_what_its_role_says(cluster: Cluster) -> None:
    may = {what: cluster.service_account_may(*what.split()) for what in ("create pods", "get nodes", "create services")}
    assert may == {"create pods": True, "get nodes": False, "create services": False}
