"""A complete Kandev whose sessions run in Pods of the stand-in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from executors_app.runtimes.kubernetes.names import pod_name
from tests.drills.deployment import Deployment, Session
from tests.kubernetes.standin.cluster import StandIn
from tests.kubernetes.standin.container import ENVIRONMENT
from tests.kubernetes.standin.harness import KubernetesHarness
from tests.waiting import eventually

AGENT_HOME = f"{ENVIRONMENT['HOME']}/demo"


class KubernetesDeployment(Deployment):
    """A Kandev in which every session has a Pod that outlives the control plane."""

    def __init__(self, home: Path, cluster: StandIn):
        super().__init__(home)
        self.cluster = cluster
        self.pods = KubernetesHarness(self.repository, cluster, home)

    def prepare(self) -> None:
        """Prepare the deployment with an executor for the stand-in as the default."""
        super().prepare()
        self.seeded["executor"] = self.add_executor("pods", "kubernetes", self.pods.config)

    def start_session(self, prompt: str, profile: Mapping[str, Any] | None = None, **values: Any) -> PodSession:
        """Start a session in a new Pod."""
        inside = {"command": ["kandev-demo-agent"], "env": {"KANDEV_DEMO_AGENT_HOME": AGENT_HOME}}
        made = super().start_session(prompt, {**inside, **(profile or {})}, **values)
        return PodSession(self, made.task_id, made.id, made.agent_home)


class PodSession(Session):
    """A session whose agentctl and files are in a Pod and on its volume."""

    deployment: KubernetesDeployment

    @property
    def volume(self) -> Path:
        """Return the directory of its volume."""
        return self.deployment.pods.volume(self.id)

    def journal(self) -> str:
        """Return the journal from the volume."""
        directory = self.volume / "state" / self.execution_id / "journal"
        return "".join(path.read_text(errors="replace") for path in sorted(directory.glob("*.jsonl")))

    def agent_log(self) -> str:
        """Return the agent's own log of what it said, from the volume."""
        return "".join(path.read_text() for path in sorted((self.volume / "home" / "demo").glob("*.said")))

    def kill_everything(self) -> None:
        """Kill the first process of the Pod: all others end with it, and the node reports the end."""
        assert self.processes(), "no process of the session runs"
        self.deployment.cluster.kill(pod_name(self.id))
        eventually(lambda: not self.processes(), describe="no process of the session runs")
