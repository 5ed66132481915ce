"""Kandev itself in a cluster: the image of deploy/Dockerfile, installed and upgraded by Helm with the chart.

PostgreSQL and Redis are processes of the tests, in the network of the tests, as an operator's servers are elsewhere.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.deploy.helm.charts import CHART, render
from tests.docker import machine_image
from tests.docker.engine import build
from tests.docker.test_control_plane_image import CONTEXT, MORE_PROGRAMS
from tests.drills.deployment import SEED, Deployment, Session
from tests.environment import DATABASE_URL
from tests.executors.repositories import make_repository
from tests.kubernetes import helm_action
from tests.kubernetes.cluster import IMAGE, KUBECTL, STORAGE_CLASS, Cluster
from tests.kubernetes.nodes import Node
from tests.kubernetes.pod_deployment import AGENT_HOME
from tests.postgresql import Server
from tests.redis_server import RedisServer
from tests.waiting import eventually

NAMESPACE, SESSIONS = "release", "release-sessions"
"""Of the control plane, and of the Pods of its sessions."""
COMPONENTS: Final = ("web", "supervisor", "worker")
AGENT: Final = {"command": ["kandev-demo-agent"], "env": {"KANDEV_DEMO_AGENT_HOME": AGENT_HOME}}
_USER: Final = 10001
_IMAGE: Final = "kandev:test"


class InstalledKandev(Deployment):
    """A release of the chart; its commands run in the Pod of its supervisor."""

    def __init__(self, home: Path, cluster: Cluster):
        super().__init__(home)
        self.cluster = cluster
        self.postgresql, self.redis = Server(), RedisServer()
        self.values: dict[str, Any] = {
            "image": dict(zip(("repository", "tag"), _IMAGE.split(":"), strict=True)) | {"pullPolicy": "Never"},
            "site": {"host": "127.0.0.1", "origin": "http://127.0.0.1"},
            "sessions": {"namespace": SESSIONS, "image": IMAGE},
            "data": {"storageClass": STORAGE_CLASS, "size": "1Gi"},
            "web": {"replicas": 1, "drainSeconds": 1},
            "nodeSelector": {"kubernetes.io/hostname": self.node.name},
            "podDisruptionBudget": {"enabled": False},  # this API server is older than its version of the API
        }

    @property
    def node(self) -> Node:
        """Return the node that has the image, and the disk of the release."""
        return self.cluster.nodes[0]

    # --- installation ---

    def build_image(self) -> None:
        """Build the image of the control plane on its node."""
        client = self.node.client(timeout=300)
        try:
            base = machine_image.import_into(client, tag="whole", requirements="base", more_programs=MORE_PROGRAMS)
            build(client, "deploy/Dockerfile", CONTEXT, _IMAGE, BASE=base, NODE=base)
            client.create_container(_IMAGE)  # a node with a full disk removes images that nothing uses
        finally:
            client.close()

    def prepare(self) -> None:
        """Start PostgreSQL and Redis, and create what an operator has to: a namespace and a Secret."""
        self.remove()
        left = ("get", "namespace", NAMESPACE, SESSIONS, "--ignore-not-found", "--output=name")
        eventually(lambda: not self.kubectl(*left), timeout=180, describe="an earlier release is gone")
        self.postgresql.start()
        self.redis.start()
        self.env[DATABASE_URL] = self.postgresql.new_database()
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        secret = {
            "secret-key": os.urandom(24).hex(),
            "database-url": self._seen_by_pods(self.env[DATABASE_URL], self.postgresql.port),
            "redis-url": self._seen_by_pods(self.redis.url, self.redis.port),
        }
        self.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kandev"}, "stringData": secret})
        self._prepare_volume()

    def _seen_by_pods(self, url: str, port: int) -> str:
        return url.replace(f"127.0.0.1:{port}", self.cluster.publish(port))

    def _prepare_volume(self) -> None:
        """Create the chart's own claim, for Helm to adopt, and do what kubelet does for fsGroup: on a disk alone."""
        claim = json.loads(json.dumps(render(self.values, NAMESPACE).named("PersistentVolumeClaim", "kandev-data")))
        claim["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "Helm"
        claim["metadata"]["annotations"] |= {
            "meta.helm.sh/release-name": helm_action.NAME,
            "meta.helm.sh/release-namespace": NAMESPACE,
        }
        self.apply(claim)
        eventually(self._volume_name, timeout=120, describe="the claim is bound")
        volume = self.volume
        repositories = volume / "repositories"
        repositories.mkdir(parents=True)
        make_repository(repositories / "drill")
        for path in (volume, *volume.rglob("*")):
            os.chown(path, _USER, _USER)
        volume.chmod(0o2770)

    @property
    def volume(self) -> Path:
        """Return where this machine has the files of the release."""
        path = self.kubectl("get", "pv", self._volume_name(), "--output=jsonpath={.spec.hostPath.path}")
        return self.cluster.home / "volumes" / Path(path).name

    def _volume_name(self) -> str:
        return self.kubectl("get", "pvc", "kandev-data", "--output=jsonpath={.spec.volumeName}")

    def helm(self, action: str, *, timeout: int = 300, revision: int = 0, **values: Any) -> dict[str, Any]:
        """Install, upgrade or roll back as ``helm --wait`` does; return its answer, with *error* if it failed."""
        request = {
            "action": action,
            "chart": str(CHART),
            "kubeconfig": str(self.cluster.kubeconfig),
            "namespace": NAMESPACE,
            "revision": revision,
            "timeout": timeout,
            "values": self.values | values,
        }
        command = [sys.executable, helm_action.__file__]
        done = subprocess.run(
            command, input=json.dumps(request), check=True, capture_output=True, text=True, timeout=timeout + 60
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def open(self) -> None:
        """Make the web Pods reachable through their Service, and create an account and an executor."""
        service = self.read("service", "kandev-web")["spec"]["clusterIP"]
        self.url = f"http://127.0.0.1:{self.cluster.reach(self.node, service, 80)}"
        self.seeded = json.loads(self.run_script(SEED))
        self.change("UPDATE repositories SET path = ?", "/var/lib/kandev/repositories/drill")
        config: dict[str, Any] = {"namespace": SESSIONS, "image_pull_policy": "Never"}
        config |= {"storage_class": STORAGE_CLASS, "storage_gb": 1, "memory_mb": 256, "cpu_request": 0.05}
        made = self.api("POST", "executors/", {"name": "Pods", "runtime": "kubernetes", "config": config})
        self.seeded["executor"] = made["id"]

    def start_session(self, prompt: str, profile: Mapping[str, Any] | None = None, **values: Any) -> Session:
        """Start a session in a Pod of its own."""
        return super().start_session(prompt, {**AGENT, **(profile or {})}, **values)

    # --- its Pods ---

    def manage(
        self, *args: str, env: Mapping[str, str] | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run one management command in the Pod of the supervisor, as operators do."""
        words = ("exec", "deployment/kandev-supervisor", "--", "python3", "manage.py", *args)
        return self._run(*words, timeout=timeout)

    def pods(self, component: str) -> list[dict[str, Any]]:
        """Return the Pods of a component that are not about to go, oldest first."""
        selector = f"--selector=app.kubernetes.io/component={component}"
        found = json.loads(self.kubectl("get", "pods", selector, "--sort-by=.metadata.creationTimestamp", "-o", "json"))
        return [one for one in found["items"] if "deletionTimestamp" not in one["metadata"]]

    def pod_names(self) -> set[str]:
        """Return the names of all Pods of its processes that are not about to go."""
        return {one["metadata"]["name"] for component in COMPONENTS for one in self.pods(component)}

    def may(self, verb: str, resource: str, namespace: str) -> bool:
        """Return whether its service account may do something in a namespace."""
        account = f"--as=system:serviceaccount:{NAMESPACE}:{helm_action.NAME}"
        asked = ("auth", "can-i", verb, resource, account, f"--namespace={namespace}")
        return self._run(*asked).stdout.strip() == "yes"

    def read(self, kind: str, name: str, namespace: str = NAMESPACE) -> dict[str, Any]:
        """Return an object."""
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, name, f"--namespace={namespace}", "-o", "json"))
        return found

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl as the administrator in the namespace of the release, which must succeed; return its output."""
        done = self._run(*arguments, text=text)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout.strip()

    def apply(self, one: Mapping[str, Any]) -> None:
        """Create an object."""
        self.kubectl("apply", "--validate=false", "-f", "-", text=json.dumps(one))

    def _run(self, *arguments: str, text: str | None = None, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        command = [str(KUBECTL), f"--kubeconfig={self.cluster.kubeconfig}", f"--namespace={NAMESPACE}", *arguments]
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=timeout, check=False)

    # --- the end ---

    def remove(self) -> None:
        """Begin to remove both namespaces with everything in them."""
        names = self._run("get", "pods", f"--namespace={SESSIONS}", "--output=name").stdout.split()
        for name in names:
            patch = '{"metadata": {"finalizers": null}}'
            self._run("patch", name, f"--namespace={SESSIONS}", "--type=merge", f"--patch={patch}")
        self._run("delete", "pods", "--all", f"--namespace={SESSIONS}", "--force", "--grace-period=0")
        self._run("delete", "namespace", NAMESPACE, SESSIONS, "--ignore-not-found", "--wait=false")

    def close(self) -> None:
        """Begin to remove the release, and end its servers."""
        self.remove()
        self.redis.close()
        self.postgresql.close()
        shutil.rmtree(self.home, ignore_errors=True)
