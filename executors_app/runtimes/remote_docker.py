"""Sessions in containers of another machine's Docker engine, over TLS or ssh.

As in ``local_docker``, but what has to last is in volumes over there: the workspace is a clone of the team's
repository, to which branch and snapshots come home after each turn. agentctl is reached at a published port.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from executors_app import home_repository
from executors_app.agentctl.places.disk import Disk
from executors_app.containers import archives
from executors_app.containers.engine import Engine, connected
from executors_app.containers.far_config import read_far
from executors_app.containers.launch import alone
from executors_app.containers.runtime import DockerRuntime
from executors_app.containers.site import STATE
from executors_app.containers.volumes import FarVolumes, workspace_mount
from executors_app.domain import ExecutionFacts
from executors_app.local_disk import places_of

T = TypeVar("T")


class RemoteDocker(DockerRuntime):
    """The runtime; keeps nothing in memory."""

    name = "remote_docker"

    def read(self, config: Mapping[str, Any]) -> FarVolumes:
        """``FarConfig`` and ``DockerConfig`` say what there is to set."""
        return FarVolumes(read_far(config))

    def is_here(self, execution: ExecutionFacts) -> bool:
        """Whoever reaches the engine can look after it."""
        return True

    def resume_token(self, execution: ExecutionFacts) -> str | None:
        """From agentctl's volume; blocks."""
        return self._left(execution, "token.json", lambda disk: disk.resume_token(execution.id))

    def left_journal(self, execution: ExecutionFacts, after: int, epoch: str) -> Sequence[Mapping[str, Any]]:
        """From agentctl's volume; blocks."""
        return self._left(execution, "journal", lambda disk: disk.left_journal(execution.id, after, epoch)) or []

    async def bring_home(self, execution: ExecutionFacts) -> bool:
        """Fetch the session's branch and last snapshot into the team's repository."""
        return await asyncio.to_thread(self._bring_home, execution)

    def _left(self, execution: ExecutionFacts, what: str, read: Callable[[Disk], T]) -> T | None:
        """Fetch something of agentctl's state, and read it as if it were on this disk."""
        site = self.read(execution.config)
        with (
            tempfile.TemporaryDirectory(prefix="kandev-left-") as directory,
            connected(site.address) as engine,
            site.left(engine, execution) as container,
        ):
            disk = Disk(Path(directory))
            into = disk.places_of(execution.id).path
            if container is None or not archives.fetch(engine, container, f"{STATE}/{what}", into):
                return None
            return read(disk)

    def _bring_home(self, execution: ExecutionFacts) -> bool:
        site = self.read(execution.config)
        if not execution.repository_path or not execution.worktree_path:
            return False
        places = places_of(execution.id)
        places.make()
        with alone(places), connected(site.address) as engine:
            return _fetch_work(site, engine, execution)


def _fetch_work(site: FarVolumes, engine: Engine, execution: ExecutionFacts) -> bool:
    repository, branch = Path(execution.repository_path), execution.worktree_branch
    known = home_repository.known(repository, execution.session_id, branch)
    into = f"/tmp/{execution.session_id}.bundle"  # noqa: S108  (the helper's own)
    arguments = ["bundle", "--session-id", execution.session_id, "--branch", branch, "--into", into]
    arguments += [word for commit in known for word in ("--known", commit)]
    helper = site.helper(execution, workspace_mount(execution.session_id))
    with tempfile.TemporaryDirectory(prefix="kandev-home-") as directory:
        with helper.made(engine, "home", arguments) as name:
            answer = helper.run(engine, name)
            if answer["packed"]:
                archives.fetch(engine, name, into, Path(directory))
        bundle = Path(directory) / Path(into).name
        home_repository.take_in(repository, bundle, answer["refs"], execution.session_id, branch)
    return bool(set(answer["refs"].values()) - set(known))


RUNTIME: Final = RemoteDocker()
