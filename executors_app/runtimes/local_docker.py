"""Sessions in containers of a Docker engine on this machine: one container each, found by its labels.

Everything is found again by the execution id: the container's name and labels, its network, the state directory.
What has to last is on this disk: the worktree, agentctl's journal, the agent's home.
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
    """The runtime; keeps nothing in memory."""

    name = "local_docker"
    shares_memory = True
    shares_worktrees = True

    def read(self, config: Mapping[str, Any]) -> LocalSite:
        """``DockerConfig`` says what there is to set."""
        return LocalSite(read_docker_config(config))

    async def push_work(self, execution: ExecutionFacts) -> bool:
        """As on every engine; then the place that a workspace of an earlier release had may go."""
        is_new = await super().push_work(execution)
        if await asyncio.to_thread(local_site.remove_converted_workspace, execution):
            # The branch could not be published as long as the old work tree had it checked out.
            await super().push_work(execution)
        return is_new

    def addresses(self, configs: Iterable[Mapping[str, Any]]) -> set[EngineAddress]:
        """There is one engine, whatever executors there are."""
        return super().addresses([{}])


RUNTIME: Final = LocalDocker()
