"""The runtime on Kubernetes under test, with ways to disturb its Pods on the test cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from docker.errors import DockerException

from executors_app.machine.git.recovery_snapshots import session_recovery_ref
from executors_app.runtimes.kubernetes import names
from executors_app.runtimes.kubernetes.pod_state import Pod
from executors_app.runtimes.kubernetes.runtime import RUNTIME, Kubernetes
from executors_app.wire.executions import LaunchSpec
from tests.executors.repositories import run_git
from tests.kubernetes.cluster import IMAGE, NAMESPACE, STORAGE_CLASS, Cluster
from tests.waiting import eventually

USER = "1000:1000"
"""Whom agents are there."""


class KubernetesHarness:
    """Harness for Pods of the test cluster."""

    runtime: Kubernetes = RUNTIME
    demo_agent = ["kandev-demo-agent"]
    user = USER

    def __init__(self, repository: Path, cluster: Cluster):
        self.repository, self.cluster = repository, cluster

    @property
    def config(self) -> dict[str, Any]:
        """Return ``Executor.config``: the service account, and as little as sessions need."""
        return {
            "kubeconfig": str(self.cluster.service_account_kubeconfig),
            "namespace": NAMESPACE,
            "image": IMAGE,
            "image_pull_policy": "Never",
            "storage_class": STORAGE_CLASS,
            "storage_gb": 1,
            "memory_mb": 256,
            "cpu_request": 0.05,
        }

    def pod(self, session_id: str) -> dict[str, Any]:
        """Return the object of a session's Pod."""
        return self.cluster.read("pods", names.pod_name(session_id))

    def kill(self, spec: LaunchSpec) -> None:
        """Kill agentctl with SIGKILL: all others in its container end with it."""
        self.kill_session(spec.session_id)

    def kill_session(self, session_id: str) -> None:
        """Kill the first process of a session's Pod, and wait until its node has reported the end."""
        name = names.pod_name(session_id)
        node = self.cluster.node_of(name)
        node.signal_container(name, "KILL")
        eventually(lambda: Pod(self.pod(session_id)).end(), timeout=120, describe="the Pod has ended")
        node.collect_garbage(name)

    @contextmanager
    def silence(self, spec: LaunchSpec) -> Iterator[None]:
        """Freeze agentctl with SIGSTOP during the block."""
        name = names.pod_name(spec.session_id)
        node = self.cluster.node_of(name)
        node.signal_container(name, "STOP")
        try:
            yield
        finally:
            node.signal_container(name, "CONT")

    def run(self, spec: LaunchSpec, *argv: str) -> tuple[int, str]:
        """Run a command in the Pod as its agent would; return exit code and output."""
        name = names.pod_name(spec.session_id)
        return self.cluster.node_of(name).run_in(name, USER, *argv)

    def volume(self, owner_id: str) -> Path:
        """Return where this machine has a session's volume."""
        return self.cluster.volume_directory(names.claim_name(owner_id))

    def directory_of(self, owner_id: str) -> Path:
        """Return where this machine has a session's workspace."""
        return self.volume(owner_id) / "workspace"

    def home_of(self, owner_id: str) -> Path:
        """Return where this machine has the home directory of a session's agent."""
        return self.volume(owner_id) / "home"

    def seen(self, path: str) -> Path:
        """Return a path of a workspace as this machine sees it."""
        owner_id = Path(path).name
        return self.directory_of(owner_id) / "worktrees" / owner_id

    def git(self, path: str, *arguments: str) -> str:
        """Run git in the session's running Pod; return its output."""
        name = names.pod_name(Path(path).name)
        return self.cluster.node_of(name).execute(name, USER, "git", "-C", path, *arguments)

    def forget(self, branch: str, session_id: str) -> None:
        """Prune worktrees, and delete a branch with its snapshots, in the workspace's own repository."""
        repository = self.directory_of(session_id) / "repository.git"
        ours = ("-c", "safe.directory=*")
        run_git(repository, *ours, "worktree", "prune")
        if branch:
            run_git(repository, *ours, "branch", "-D", branch)
            run_git(repository, *ours, "update-ref", "-d", session_recovery_ref(session_id))

    @contextmanager
    def collecting_garbage(self) -> Iterator[None]:
        """Remove ended containers of deleted Pods at once during the block, as their nodes do once a minute.

        An object of a Pod cannot go before: nodes of this age often forget to remove its containers with it. Then they
        look only every ten seconds whether the object may go, unless it changes.
        """
        is_over = threading.Event()

        def collect() -> None:
            while not is_over.wait(0.5):
                with suppress(AssertionError, OSError, DockerException):  # of what a test has broken
                    self._collect_garbage()

        collecting = threading.Thread(target=collect, name="garbage of Pods")
        collecting.start()
        try:
            yield
        finally:
            is_over.set()
            collecting.join()

    def _collect_garbage(self) -> None:
        for pod in map(Pod, self.cluster.read("pods")["items"]):
            if pod.is_deleted and pod.end():
                for node in self.cluster.nodes:
                    if node.name == pod.node:
                        node.collect_garbage(pod.name)
                changed = {"kandev.test/looked-at": str(time.monotonic())}
                self.cluster.change("pods", pod.name, {"metadata": {"annotations": changed}})

    def close(self) -> None:
        """Remove every Pod, also those whose end nobody has seen."""
        self.cluster.ensure()
        self.cluster.remove_sessions()
