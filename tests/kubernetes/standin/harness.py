"""The runtime on the stand-in under test, with ways to disturb its Pods."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from executors_app.machine.git.recovery_snapshots import session_recovery_ref
from executors_app.runtimes.kubernetes.names import claim_name, pod_name
from executors_app.runtimes.kubernetes.runtime import RUNTIME
from executors_app.wire.executions import LaunchSpec
from tests.executors.repositories import run_git
from tests.kubernetes.standin.api import NAMESPACE
from tests.kubernetes.standin.cluster import StandIn

OURS = ("-c", "safe.directory=*")


def executor_settings(cluster: StandIn, directory: Path) -> dict[str, Any]:
    """Return the settings of an executor for the stand-in; writes its kubeconfig into a directory."""
    kubeconfig = directory / "kubeconfig"
    kubeconfig.touch(mode=0o600)
    kubeconfig.write_text(cluster.kubeconfig())
    return {
        "kubeconfig": str(kubeconfig),
        "namespace": NAMESPACE,
        "image": "kandev-agentctl:test",
        "image_pull_policy": "Never",
        "storage_class": cluster.storage_class,
    }


class KubernetesHarness:
    """Harness for Pods of the stand-in."""

    runtime = RUNTIME

    def __init__(self, repository: Path, cluster: StandIn, directory: Path):
        self.repository, self.cluster = repository, cluster
        self.demo_agent = ["kandev-demo-agent"]
        self.config = executor_settings(cluster, directory)

    def kill(self, spec: LaunchSpec) -> None:
        """Kill the first process of the Pod with SIGKILL: all others end with it."""
        self.kill_session(spec.worktree_owner)

    def kill_session(self, session_id: str) -> None:
        """Kill the first process of a session's Pod."""
        self.cluster.kill(pod_name(session_id))

    @contextmanager
    def silence(self, spec: LaunchSpec) -> Iterator[None]:
        """Freeze agentctl with SIGSTOP during the block."""
        name = pod_name(spec.worktree_owner)
        self.cluster.send_signal(name, signal.SIGSTOP)
        try:
            yield
        finally:
            self.cluster.send_signal(name, signal.SIGCONT)

    def volume(self, owner_id: str) -> Path:
        """Return the directory of a session's volume."""
        return self.cluster.volume(claim_name(owner_id))

    def seen(self, path: str) -> Path:
        """Return a path of a workspace as this machine sees it."""
        owner = Path(path).name
        return self.volume(owner) / "workspace" / "worktrees" / owner

    def git(self, path: str, *arguments: str) -> str:
        """Run git in a worktree; return its output."""
        owner = Path(path).name
        repository = self.volume(owner) / "workspace" / "repository.git" / "worktrees" / owner
        return run_git(self.seen(path), *OURS, f"--git-dir={repository}", f"--work-tree={self.seen(path)}", *arguments)

    def forget(self, branch: str, session_id: str) -> None:
        """Prune worktrees, and delete a branch with its snapshots, in the workspace's own repository."""
        repository = self.volume(session_id) / "workspace" / "repository.git"
        run_git(repository, *OURS, "worktree", "prune")
        if branch:
            with suppress(AssertionError):
                run_git(repository, *OURS, "branch", "-D", branch)
            run_git(repository, *OURS, "update-ref", "-d", session_recovery_ref(session_id))
