"""Another engine, which is reached over TLS at another address, and the runtime on it under test."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from executors_app.domain import LaunchSpec
from executors_app.runtimes.remote_docker import RUNTIME, RemoteDocker, home_volume, state_volume, workspace_volume
from tests.docker.certificates import CLIENT, SERVER, Authority
from tests.docker.engine import Engine
from tests.docker.harness import DockerHarness
from tests.network import free_port

ADDRESS: Final = "127.0.0.2"
"""Of the machine that the other engine is taken to be on."""
POOL: Final = "10.214.0.0/16"


class RemoteEngine(Engine):
    """Speaks TLS, and with nobody who has no certificate of its authority."""

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
        """``Executor.config`` of an executor that uses it."""
        return {
            "docker_host": f"tcp://{ADDRESS}:{self.port}",
            "tls_ca": str(self.authority.certificate),
            "tls_cert": str(self.client_pair.certificate),
            "tls_key": str(self.client_pair.key),
            "publish": ADDRESS,
        }

    def volume(self, name: str) -> Path:
        """Where its files are, on this machine."""
        return self.home / "root" / "volumes" / name / "_data"


class RemoteEngineHarness(DockerHarness):
    """Containers and volumes of the other engine."""

    runtime: RemoteDocker = RUNTIME
    engine: RemoteEngine

    def __init__(self, repository: Path, engine: RemoteEngine):
        super().__init__(repository, engine)
        self.config = engine.config
        self.user = "1000:1000"

    def directory_of(self, owner_id: str) -> Path:
        """The volume's directory."""
        return self.engine.volume(workspace_volume(owner_id))

    def volumes_of(self, spec: LaunchSpec) -> set[str]:
        """Those that a launch makes."""
        return {state_volume(spec.execution_id), home_volume(spec.session_id), workspace_volume(spec.session_id)}

    def close(self) -> None:
        """The volumes too."""
        super().close()
        with self.client() as client:
            for found in client.volumes(filters={"label": "kandev.managed=true"})["Volumes"] or ():
                client.remove_volume(found["Name"])
