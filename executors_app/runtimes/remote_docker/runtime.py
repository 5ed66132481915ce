"""Runtime ``remote_docker``: sessions in containers of another machine's Docker engine, over TLS or ssh.

Worktree, journal and home are in volumes on that machine, which outlive its containers. agentctl is reached at a
published port. A lost workspace is rebuilt from the newest snapshot that had arrived, as the receipt shows; without
one it is gone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from executors_app.machine.storage import ExecutionStorage
from executors_app.runtimes.containers import archives
from executors_app.runtimes.containers.engine import EngineRefused, open_engine
from executors_app.runtimes.containers.runtime import DockerRuntime
from executors_app.runtimes.containers.sites import STATE_PATH
from executors_app.runtimes.remote_docker.config import read_remote_config
from executors_app.runtimes.remote_docker.site import RemoteSite
from executors_app.wire.errors import RuntimeUnavailable
from executors_app.wire.executions import ExecutionFacts

T = TypeVar("T")


class RemoteDocker(DockerRuntime):
    """The runtime; keeps no state in memory."""

    name = "remote_docker"

    def read(self, config: Mapping[str, Any]) -> RemoteSite:
        """Return the site; see ``EngineAddress``, ``Site`` and ``DockerConfig`` for the settings."""
        return read_remote_config(config)

    def can_manage(self, execution: ExecutionFacts) -> bool:
        """Every control plane that reaches the engine can manage its executions."""
        return True

    def resume_token(self, execution: ExecutionFacts) -> str | None:
        """Read it from agentctl's volume; blocks."""
        return self._left(execution, "token.json", lambda disk: disk.resume_token(execution.id))

    def unread_journal(self, execution: ExecutionFacts, after: int, epoch: str) -> Sequence[Mapping[str, Any]]:
        """Read it from agentctl's volume; blocks."""
        return self._left(execution, "journal", lambda disk: disk.unread_journal(execution.id, after, epoch)) or []

    def _left(self, execution: ExecutionFacts, what: str, read: Callable[[ExecutionStorage], T]) -> T | None:
        """Fetch part of agentctl's state and read it as if it were on this disk."""
        site = cast(RemoteSite, self.site(execution.config))
        try:
            with (
                tempfile.TemporaryDirectory(prefix="kandev-left-") as directory,
                open_engine(site.address) as engine,
                site.left(engine, execution) as container,
            ):
                disk = ExecutionStorage(Path(directory))
                into = disk.state_directory_of(execution.id).path
                if container is None or not archives.fetch_files(engine, container, f"{STATE_PATH}/{what}", into):
                    return None
                return read(disk)
        except EngineRefused as error:
            # It has not shown what is there, such as for a helper that it refuses to make.
            raise RuntimeUnavailable(error.message) from error


RUNTIME: Final = RemoteDocker()
