"""A second engine, reached over TLS at another address, and the runtime on it under test."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from executors_app.runtimes.remote_docker.runtime import RUNTIME, RemoteDocker
from executors_app.runtimes.remote_docker.site import home_volume, state_volume, workspace_volume
from executors_app.wire.executions import LaunchSpec
from tests.docker.certificates import CLIENT, SERVER, Authority
from tests.docker.engine import Engine
from tests.docker.harness import DockerHarness
from tests.network import free_port

ADDRESS: Final = "127.0.0.2"
"""The address of the machine that the remote engine stands in for."""
POOL: Final = "10.214.0.0/16"


class RemoteEngine(Engine):
    """An engine that speaks TLS and accepts only clients with a certificate of its authority."""

    def __init__(self) -> None:
        super().__init__(POOL)
        self.authority = Authority(self.home / "certificates")
        server = self.authority.issue("engine", SERVER, ADDRESS)
        self.client_pair = self.authority.issue("kandev", CLIENT)
        self.port = free_port(ADDRESS)
        self.more_options = [
            f"--host=tcp://{ADDRESS}:{self.port}",
            "--tlsverify",
            f"--tlscacert={self.authority.certificate}",
            f"--tlscert={server.certificate}",
            f"--tlskey={server.key}",
        ]

    @property
    def config(self) -> dict[str, Any]:
        """Return ``Executor.config`` of an executor that uses this engine."""
        return {
            "docker_host": f"tcp://{ADDRESS}:{self.port}",
            "tls_ca": str(self.authority.certificate),
            "tls_cert": str(self.client_pair.certificate),
            "tls_key": str(self.client_pair.key),
            "publish": ADDRESS,
        }

    def volume(self, name: str) -> Path:
        """Return the directory of a volume on this machine."""
        return self.home / "root" / "volumes" / name / "_data"


class RemoteEngineHarness(DockerHarness):
    """Harness for containers and volumes of the remote engine."""

    runtime: RemoteDocker = RUNTIME
    engine: RemoteEngine

    def __init__(self, repository: Path, engine: RemoteEngine):
        super().__init__(repository, engine)
        self.config = engine.config
        self.user = "1000:1000"

    def directory_of(self, owner_id: str) -> Path:
        """Return the directory of the workspace's volume."""
        return self.engine.volume(workspace_volume(owner_id))

    def home_of(self, owner_id: str) -> Path:
        """Return the home directory of a session's agent."""
        return self.engine.volume(home_volume(owner_id))

    def volumes_of(self, spec: LaunchSpec) -> set[str]:
        """Return the names of the volumes that a launch creates."""
        return {state_volume(spec.execution_id), home_volume(spec.session_id), workspace_volume(spec.session_id)}

    def close(self) -> None:
        """Remove every managed container, network and volume."""
        super().close()
        with self.client() as client:
            for found in client.volumes(filters={"label": "kandev.managed=true"})["Volumes"] or ():
                client.remove_volume(found["Name"])
