"""Sessions in containers of a Docker engine on this machine: one container each, found by its labels.

Everything is found again by the execution id: the container's name and labels, its network, the state directory.
What has to last is on this disk: the worktree, agentctl's journal, the agent's home.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from executors_app.containers import earlier_workspace
from executors_app.containers.address import EngineAddress
from executors_app.containers.config import read_config
from executors_app.containers.runtime import DockerRuntime
from executors_app.containers.this_disk import ThisDisk
from executors_app.domain import ExecutionFacts
from executors_app.local_disk import KeptOnThisDisk


class LocalDocker(KeptOnThisDisk, DockerRuntime):
    """The runtime; keeps nothing in memory."""

    name = "local_docker"
    shares_memory = True
    shares_worktrees = True

    def read(self, config: Mapping[str, Any]) -> ThisDisk:
        """``DockerConfig`` says what there is to set."""
        return ThisDisk(read_config(config))

    async def push_work(self, execution: ExecutionFacts) -> bool:
        """As on every engine; then the place that a workspace of an earlier release had may go."""
        is_new = await super().push_work(execution)
        if await asyncio.to_thread(earlier_workspace.remove_converted, execution):
            # The branch could not be published as long as the old work tree had it checked out.
            await super().push_work(execution)
        return is_new

    def addresses(self, configs: Iterable[Mapping[str, Any]]) -> set[EngineAddress]:
        """There is one engine, whatever executors there are."""
        return super().addresses([{}])


RUNTIME: Final = LocalDocker()
