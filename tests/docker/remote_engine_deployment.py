"""A whole Kandev whose sessions run on another machine's engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from executors_app.agentctl.process import identity
from executors_app.containers.sites import HOME_PATH
from executors_app.runtimes.remote_docker import home_volume, state_volume, workspace_volume
from tests.docker.engine import IMAGE
from tests.docker.remote_engine import RemoteEngine, RemoteEngineHarness
from tests.drills.deployment import Deployment, Session

AGENT_HOME = f"{HOME_PATH}/demo"


class RemoteEngineDeployment(Deployment):
    """This machine has no engine of its own."""

    def __init__(self, home: Path, engine: RemoteEngine):
        super().__init__(home)
        self.engine = engine
        self.env |= {"KANDEV_DOCKER_HOST": "unix:///nowhere/docker.sock", "KANDEV_AGENTCTL_IMAGE": IMAGE}

    def prepare(self) -> None:
        """With an executor over there, and no other."""
        super().prepare()
        self.seeded["executor"] = self.add_executor("remote engine", "remote_docker", self.engine.config)

    def start_session(
        self, prompt: str, profile: Mapping[str, Any] | None = None, **values: Any
    ) -> RemoteEngineSession:
        """In a container over there, where the agent has a home of the session's own."""
        inside = {"command": ["kandev-demo-agent"], "env": {"KANDEV_DEMO_AGENT_HOME": AGENT_HOME}}
        made = super().start_session(prompt, {**inside, **(profile or {})}, **values)
        return RemoteEngineSession(self, made.task_id, made.id)

    def close(self) -> None:
        """What is over there too."""
        super().close()
        self.engine.ensure()
        RemoteEngineHarness(self.repository, self.engine).close()


class RemoteEngineSession(Session):
    """One whose files are in volumes; processes are seen, as the other machine is this one in truth."""

    deployment: RemoteEngineDeployment

    def __init__(self, deployment: RemoteEngineDeployment, task_id: str, session_id: str):
        home = deployment.engine.volume(home_volume(session_id)) / Path(AGENT_HOME).name
        super().__init__(deployment, task_id, session_id, home)

    def journal(self) -> str:
        """In agentctl's volume."""
        directory = self.deployment.engine.volume(state_volume(self.execution_id)) / "journal"
        return "".join(path.read_text(errors="replace") for path in sorted(directory.glob("*.jsonl")))

    def seen(self, path: str) -> Path:
        """A file of its workspace."""
        return self.deployment.engine.volume(workspace_volume(self.id)) / Path(path).relative_to("/workspace")

    def kill_everything(self) -> None:
        """SIGKILL for all of it, and nothing else of its container's."""
        identity.kill_all(self.processes(), 10)
        self.deployment.engine.wait_for_end_of(self.execution_id)
