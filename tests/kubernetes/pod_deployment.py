"""A complete Kandev whose sessions run in Pods, of the stand-in or of a real cluster."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from executors_app.runtimes.containers.sites import HOME_PATH
from tests.drills.deployment import Deployment, Session
from tests.drills.restart_drills import RestartDrills
from tests.waiting import eventually

AGENT_HOME = f"{HOME_PATH}/demo"


class Pods(Protocol):
    """The Pods of a cluster under test."""

    @property
    def config(self) -> dict[str, Any]:
        """Return ``Executor.config``."""
        ...

    def volume(self, owner_id: str) -> Path:
        """Return the directory of a session's volume."""
        ...

    def seen(self, path: str) -> Path:
        """Return a path of a workspace as this machine sees it."""
        ...

    def forget(self, branch: str, session_id: str) -> None:
        """Delete a branch with its snapshots, and git's records of missing worktrees."""
        ...

    def kill_session(self, session_id: str) -> None:
        """Kill the first process of a session's Pod: all others end with it, and the node reports the end."""
        ...


class PodDeployment(Deployment):
    """A Kandev in which every session has a Pod that outlives the control plane."""

    pods: Pods

    def prepare(self) -> None:
        """Prepare the deployment with an executor for the cluster as the default."""
        super().prepare()
        self.seeded["executor"] = self.add_executor("pods", "kubernetes", self.pods.config)

    def start_session(self, prompt: str, profile: Mapping[str, Any] | None = None, **values: Any) -> PodSession:
        """Start a session in a new Pod."""
        inside = {"command": ["kandev-demo-agent"], "env": {"KANDEV_DEMO_AGENT_HOME": AGENT_HOME}}
        made = super().start_session(prompt, {**inside, **(profile or {})}, **values)
        return PodSession(self, made.task_id, made.id, made.agent_home)


class PodSession(Session):
    """A session whose agentctl and files are in a Pod and on its volume."""

    deployment: PodDeployment

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
        self.deployment.pods.kill_session(self.id)
        eventually(lambda: not self.processes(), describe="no process of the session runs")


class PodDrills(RestartDrills):
    """The restart drills with sessions in Pods."""

    def lose_workspace(self, deployment: Deployment, session: Session) -> None:
        """Remove the worktree, the branch and the snapshots on a session's volume."""
        assert isinstance(session, PodSession)
        lost, pods = session.row, session.deployment.pods
        shutil.rmtree(pods.seen(lost["worktree_path"]))
        pods.forget(lost["worktree_branch"], session.id)
