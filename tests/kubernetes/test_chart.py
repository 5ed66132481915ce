"""The chart's objects on a real cluster: it takes them all, and their Pods have the places and rights that they need.

The cluster has no image of the control plane: a shell stands in for it, with the same user, volumes and probes.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from executors_app.runtimes.kubernetes.cluster import RIGHTS
from tests.deploy.helm.charts import DEFAULTS, render
from tests.kubernetes.cluster import IMAGE, KUBECTL, STORAGE_CLASS, Cluster
from tests.waiting import eventually

RELEASE, SESSIONS = "chart-release", "chart-sessions"
REPOSITORY, _, TAG = IMAGE.partition(":")
VALUES: Final[Mapping[str, Any]] = {
    **DEFAULTS,
    "image": {"repository": REPOSITORY, "tag": TAG, "pullPolicy": "Never"},
    "sessions": {"namespace": SESSIONS, "image": IMAGE},
    "data": {"storageClass": STORAGE_CLASS, "size": "1Gi"},
    "podDisruptionBudget": {"enabled": False},  # this API server is older than its version of the API
}
SCRIPT: Final = """
set -e
mkdir -p -m 700 "$KANDEV_DATA_DIR" "$KANDEV_REPOSITORY_ROOTS"
touch "$KANDEV_DATA_DIR/$HOSTNAME" /tmp/scratch
test "$(cat "$KANDEV_SECRET_KEY_FILE")" = secret
test "$(id -u):$(id -g)" = 10001:10001
! touch /opt/mine 2>/dev/null
if test -n "$KANDEV_BEAT_PATH"; then touch "$KANDEV_BEAT_PATH"; fi
exec sleep 600
"""
"""What a process of the control plane does with its places; it ends if one of them is not as it should be."""
SECRET: Final = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "kandev"},
    "stringData": {"secret-key": "secret", "database-url": "postgres://db/kandev", "redis-url": "redis://redis"},
}
CLUSTER_WIDE: Final = {"Namespace", "ClusterRole", "ClusterRoleBinding"}


class Release:
    """The chart's objects in the cluster."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster

    def kubectl(self, *arguments: str, text: str = "", check: bool = True) -> str:
        """Run kubectl as the administrator in the namespace of the release."""
        command = [str(KUBECTL), f"--kubeconfig={self.cluster.kubeconfig}", *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0 or not check, (arguments, done.stderr)
        return done.stdout.strip()

    def apply(self, one: Mapping[str, Any]) -> None:
        """Create an object, in the namespace of the release unless it names another one."""
        made = json.loads(json.dumps(one))
        if made["kind"] not in CLUSTER_WIDE:
            made["metadata"].setdefault("namespace", RELEASE)
        self.kubectl("apply", "--validate=false", "-f", "-", text=json.dumps(made))

    def volume(self) -> Path | None:
        """Return where this machine has the files of its claim; None until it is bound."""
        bound = self.kubectl(
            "get", "pvc", "kandev-data", f"--namespace={RELEASE}", "--output=jsonpath={.spec.volumeName}"
        )
        if not bound:
            return None
        path = self.kubectl("get", "pv", bound, "--output=jsonpath={.spec.hostPath.path}")
        return self.cluster.home / "volumes" / Path(path).name

    def remove(self) -> None:
        """Remove both namespaces with everything in them, and wait for that."""
        self.kubectl("delete", "namespace", RELEASE, SESSIONS, "--ignore-not-found", "--wait=false")
        eventually(lambda: not self.namespaces(), timeout=180, describe="the namespaces are gone")

    def namespaces(self) -> str:
        """Return which of its namespaces exist."""
        return self.kubectl("get", "namespace", RELEASE, SESSIONS, "--ignore-not-found", "--output=name")

    def pods(self) -> list[dict[str, Any]]:
        """Return its Pods."""
        found = self.kubectl("get", "pods", f"--namespace={RELEASE}", "--output=json")
        items: list[dict[str, Any]] = json.loads(found)["items"]
        return items

    def may(self, verb: str, resource: str, namespace: str) -> bool:
        """Return whether its service account may do something in a namespace."""
        account = f"--as=system:serviceaccount:{RELEASE}:kandev"
        asked = ("auth", "can-i", verb, resource, account, f"--namespace={namespace}")
        return self.kubectl(*asked, check=False) == "yes"


@pytest.fixture
def release(cluster: Cluster) -> Iterator[Release]:
    """Yield a release whose processes are shells."""
    made = Release(cluster)
    made.remove()
    made.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RELEASE}})
    made.apply(SECRET)
    objects = render(VALUES, RELEASE).objects()
    for one in objects:
        if one["kind"] in ("Namespace", "PersistentVolumeClaim"):
            made.apply(one)
    eventually(made.volume, timeout=120, describe="the claim is bound")
    # On a disk, the kubelet does this for the fsGroup of the Pods; the volumes of this cluster are directories.
    volume = made.volume()
    assert volume is not None
    os.chown(volume, 0, 10001)
    volume.chmod(0o2770)
    for one in objects:
        if one["kind"] not in ("Namespace", "PersistentVolumeClaim"):
            made.apply(_with_shells(one))
    yield made
    made.remove()


def _with_shells(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object whose containers run a shell; what only the control plane answers is not asked."""
    made: dict[str, Any] = json.loads(json.dumps(one))
    if made["kind"] not in ("Deployment", "Job"):
        return made
    spec = made["spec"]["template"]["spec"]
    spec["terminationGracePeriodSeconds"] = 1  # a shell does not end when it is told to
    for container in spec["containers"]:
        container["command"], container["args"] = ["sh", "-c"], [SCRIPT]
        container.pop("startupProbe", None)
        container.pop("livenessProbe", None)
        if "httpGet" in container.get("readinessProbe", {}):
            del container["readinessProbe"]
    return made


def test_chart_runs_on_the_cluster_with_the_rights_that_it_needs(release: Release) -> None:
    names = ("web", "supervisor", "worker")
    for name in names:
        wait = ("rollout", "status", f"deployment/kandev-{name}", f"--namespace={RELEASE}", "--timeout=110s")
        assert "successfully rolled out" in release.kubectl(*wait)
    running = [one for one in release.pods() if one["metadata"]["labels"]["app.kubernetes.io/component"] in names]
    assert len(running) == 4
    assert len({one["spec"]["nodeName"] for one in running}) == 1, "they share a disk of one node"
    assert not any(status["restartCount"] for one in running for status in one["status"]["containerStatuses"])

    assert all(release.may(verb, resource, SESSIONS) for resource, verb in RIGHTS)
    assert not release.may("get", "secrets", SESSIONS), "what sessions were given cannot be read again"
    for resource, verb in (*RIGHTS, ("secrets", "get")):
        assert not release.may(verb, resource, RELEASE), "its own Secrets are here"
    assert not release.may("get", "nodes", RELEASE)
