"""Runtime ``local_docker``: each session in a container of a Docker engine on this machine, found by its labels.

Everything is found by the execution id: the container's name and labels, its network, the state directory.
Worktree, journal and the agent's home are on this machine's disk and outlive the container.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from executors_app.containers import local_site
from executors_app.containers.config import read_docker_config
from executors_app.containers.connection import EngineAddress
from executors_app.containers.local_site import LocalSite
from executors_app.containers.runtime import DockerRuntime
from executors_app.domain import ExecutionFacts
from executors_app.workspace_store import LocalStateMixin


class LocalDocker(LocalStateMixin, DockerRuntime):
    """The runtime; keeps no state in memory."""

    name = "local_docker"
    shares_memory = True
    shares_worktrees = True

    def read(self, config: Mapping[str, Any]) -> LocalSite:
        """Return the site; see ``DockerConfig`` for the settings."""
        return LocalSite(read_docker_config(config))

    async def push_work(self, execution: ExecutionFacts) -> bool:
        """Push as every Docker runtime does, then remove the old directory of a converted workspace."""
        is_new = await super().push_work(execution)
        if await asyncio.to_thread(local_site.remove_converted_workspace, execution):
            # While the old work tree has the branch checked out, it cannot be published.
            await super().push_work(execution)
        return is_new

    def addresses(self, configs: Iterable[Mapping[str, Any]]) -> set[EngineAddress]:
        """Return the one local engine, whatever executors there are."""
        return super().addresses([{}])


RUNTIME: Final = LocalDocker()
