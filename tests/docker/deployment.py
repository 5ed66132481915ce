"""A complete Kandev whose sessions run in containers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from executors_app.runtimes.containers.sites import HOME_PATH
from tests.docker.engine import IMAGE, Engine
from tests.drills.deployment import Deployment, Session

AGENT_HOME = f"{HOME_PATH}/demo"


class DockerDeployment(Deployment):
    """A Kandev whose sessions run in containers, unless a test names another executor."""

    def __init__(self, home: Path, engine: Engine):
        super().__init__(home)
        self.engine = engine
        self.env |= {"KANDEV_DOCKER_HOST": engine.url, "KANDEV_AGENTCTL_IMAGE": IMAGE, "KANDEV_SWEEP_TIMEOUT": "5"}
        self.on_this_machine = ""
        """The executor whose sessions run in no container."""

    def prepare(self) -> None:
        """Prepare the deployment and add an executor for containers."""
        super().prepare()
        self.on_this_machine = self.seeded["executor"]
        self.seeded["executor"] = self.add_executor("containers", "local_docker")

    def start_session(self, prompt: str, profile: Mapping[str, Any] | None = None, **values: Any) -> Session:
        """Start a session in a container, where the agent has a home directory per session."""
        if values.get("executor") == self.on_this_machine:
            return super().start_session(prompt, profile, **values)
        inside = {"command": ["kandev-demo-agent"], "env": {"KANDEV_DEMO_AGENT_HOME": AGENT_HOME}}
        made = super().start_session(prompt, {**inside, **(profile or {})}, **values)
        agent_home = self.data / "agent_homes" / made.id / Path(AGENT_HOME).name
        return ContainerSession(self, made.task_id, made.id, agent_home)


class ContainerSession(Session):
    """A session whose processes run in a container."""

    deployment: DockerDeployment

    @property
    def workspace(self) -> Path:
        """Return the workspace's directory on this machine."""
        return self.deployment.data / "workspaces" / self.id

    def kill_everything(self) -> None:
        """Kill all its processes with SIGKILL and wait until the engine knows: before that nothing may call it dead."""
        super().kill_everything()
        self.deployment.engine.wait_for_end_of(self.execution_id)
