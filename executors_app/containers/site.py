"""What one executor's containers stand on: the engine, and where workspace, journal and home are kept.

The rest of a runtime on Docker is the same wherever these are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from executors_app.agentctl.places.worktrees import Worktree
from executors_app.containers.address import EngineAddress
from executors_app.containers.config import DockerConfig
from executors_app.containers.engine import Engine
from executors_app.containers.shown import Container
from executors_app.domain import ExecutionFacts, LaunchSpec, WorkspaceState

STATE: Final = "/var/lib/agentctl/state"
"""Below a directory that the image closes to all but agentctl."""
SEED: Final = f"{STATE}/seed"
HOME: Final = "/home/agent"


@dataclass(frozen=True, slots=True)
class Ground:
    """What one container is made on."""

    root: Path
    """The workspace's directory, as the container sees it."""
    worktree: Worktree
    """As the container sees it."""
    mounts: Sequence[Mapping[str, Any]]
    user: str
    """``UID:GID`` of the files, and of the agent."""
    before_start: Callable[[Engine, str], None]
    """Called with the engine and the container's name before each start: token and seed have to be there."""
    token: str = field(repr=False)
    """What the agentctl in it takes as bearer: a new one's, or that of the one that lives."""
    rebuilt: str = ""
    """The workspace was lost: from what it is made again, as a sentence for people."""


class Site(Protocol):
    """Of one executor's settings."""

    @property
    def address(self) -> EngineAddress:
        """The engine."""
        ...

    @property
    def config(self) -> DockerConfig:
        """Image and limits."""
        ...

    @property
    def publish(self) -> str:
        """The address of the engine's machine that ports are published at."""
        ...

    @property
    def host(self) -> str:
        """Where we reach such a port, as it stands in a URL."""
        ...

    def ground(self, engine: Engine, spec: LaunchSpec, *, lives: bool, lost: str) -> Ground:
        """Prepare what the container needs. Blocks.

        ``lives``: it runs, so nothing is prepared. ``lost``: why its workspace cannot be used, so that it is made
        again. WorkspaceGone, RepositoryUnusable, LaunchFailed, RuntimeUnavailable, OSError.
        """
        ...

    def workspace_of(self, one: ExecutionFacts, container: Container | None) -> tuple[WorkspaceState, str]:
        """Whether a dead one's worktree can be had, and the precise reason if not; blocks, writes nothing.

        Raises RuntimeUnavailable, LaunchFailed where the engine gives no answer.
        """
        ...

    @property
    def user(self) -> str:
        """``UID:GID`` of the files, and of agents."""
        ...

    def workspace_mounts(self, one: ExecutionFacts) -> Sequence[Mapping[str, Any]]:
        """What a container needs to read a workspace below ``workspace_root.ROOT``."""
        ...

    def token_of(self, one: ExecutionFacts) -> str:
        """The token of its last launch, as its state directory has it; empty where there is none. Blocks.

        Raises RuntimeUnavailable, EngineRefused, OSError.
        """
        ...

    def is_gone(self, one: ExecutionFacts) -> bool:
        """Whether the absence of a container proves a death, where no launch has told of its engine."""
        ...
