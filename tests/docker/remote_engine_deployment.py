"""A complete Kandev whose sessions run on another machine's engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from executors_app.machine.process import identity
from executors_app.runtimes.containers.sites import HOME_PATH
from executors_app.runtimes.remote_docker.site import home_volume, state_volume, workspace_volume
from tests.docker.engine import IMAGE
from tests.docker.remote_engine import RemoteEngine, RemoteEngineHarness
from tests.drills.deployment import Deployment, Session

AGENT_HOME = f"{HOME_PATH}/demo"


class RemoteEngineDeployment(Deployment):
    """A Kandev on a machine without its own engine."""

    def __init__(self, home: Path, engine: RemoteEngine):
        super().__init__(home)
        self.engine = engine
        self.env |= {"KANDEV_DOCKER_HOST": "unix:///nowhere/docker.sock", "KANDEV_AGENTCTL_IMAGE": IMAGE}

    def prepare(self) -> None:
        """Prepare the deployment with an executor on the remote engine as the default."""
        super().prepare()
        self.seeded["executor"] = self.add_executor("remote engine", "remote_docker", self.engine.config)

    def start_session(
        self, prompt: str, profile: Mapping[str, Any] | None = None, **values: Any
    ) -> RemoteEngineSession:
        """Start a session in a remote container, where the agent has a home directory per session."""
        inside = {"command": ["kandev-demo-agent"], "env": {"KANDEV_DEMO_AGENT_HOME": AGENT_HOME}}
        made = super().start_session(prompt, {**inside, **(profile or {})}, **values)
        return RemoteEngineSession(self, made.task_id, made.id)

    def close(self) -> None:
        """Also remove what is on the remote engine."""
        super().close()
        self.engine.ensure()
        RemoteEngineHarness(self.repository, self.engine).close()


class RemoteEngineSession(Session):
    """A session whose files are in volumes; its processes are visible, as the other machine is really this one."""

    deployment: RemoteEngineDeployment

    def __init__(self, deployment: RemoteEngineDeployment, task_id: str, session_id: str):
        home = deployment.engine.volume(home_volume(session_id)) / Path(AGENT_HOME).name
        super().__init__(deployment, task_id, session_id, home)

    def journal(self) -> str:
        """Return the journal from agentctl's volume."""
        directory = self.deployment.engine.volume(state_volume(self.execution_id)) / "journal"
        return "".join(path.read_text(errors="replace") for path in sorted(directory.glob("*.jsonl")))

    def seen(self, path: str) -> Path:
        """Return the path of a workspace file on this machine."""
        return self.deployment.engine.volume(workspace_volume(self.id)) / Path(path).relative_to("/workspace")

    def kill_everything(self) -> None:
        """Kill all its processes with SIGKILL, and nothing else in the container."""
        identity.kill_all(self.processes(), 10)
        self.deployment.engine.wait_for_end_of(self.execution_id)
