"""The site of ``local_docker``: worktree, journal and home are directories of this machine, seen by its containers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from django.conf import settings

from executors_app import local_disk
from executors_app.agentctl import identity
from executors_app.containers.address import EngineAddress
from executors_app.containers.config import DockerConfig
from executors_app.containers.engine import Engine
from executors_app.containers.mounts import mounts
from executors_app.containers.shown import Container
from executors_app.containers.site import Ground
from executors_app.domain import ExecutionFacts, LaunchSpec, WorkspaceState

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ThisDisk:
    """With this machine's own engine."""

    config: DockerConfig
    publish: str = LOOPBACK
    host: str = LOOPBACK

    @property
    def address(self) -> EngineAddress:
        """``KANDEV_DOCKER_HOST``."""
        return EngineAddress(settings.KANDEV_DOCKER_HOST)

    def ground(self, engine: Engine, spec: LaunchSpec, *, lives: bool) -> Ground:
        """The worktree in the data directory; it is looked after even where the container runs."""
        worktree = local_disk.make_worktree(spec)
        places = local_disk.places_of(spec.execution_id)
        places.write_token(spec.auth_token)
        seen = [] if lives else mounts(worktree.path, Path(spec.repository_path), places.path, home_of(spec.session_id))
        binds = [
            {"Type": "bind", "Source": one.source, "Target": one.target, "ReadOnly": one.read_only} for one in seen
        ]
        return Ground(worktree, binds, f"{os.geteuid()}:{os.getegid()}", before_start=lambda engine, name: None)

    def workspace_of(self, one: ExecutionFacts, container: Container | None) -> tuple[WorkspaceState, str]:
        """On this disk."""
        return local_disk.workspace_of(one)

    def is_gone(self, one: ExecutionFacts) -> bool:
        """It was never placed, or was here."""
        return one.host_id in {"", identity.host_id()} or local_disk.is_known_here(one)


def home_of(session_id: str) -> Path:
    """The agent's home: its logins and conversations, kept over every container."""
    return Path(settings.KANDEV_DATA_DIR) / "agent_homes" / session_id
