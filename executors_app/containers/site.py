"""What one executor's containers stand on: the engine, and where worktree, journal and home are kept.

The rest of a runtime on Docker is the same wherever these are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from executors_app.agentctl.places.worktrees import Worktree
from executors_app.containers.address import EngineAddress
from executors_app.containers.config import DockerConfig
from executors_app.containers.engine import Engine
from executors_app.containers.shown import Container
from executors_app.domain import ExecutionFacts, LaunchSpec, WorkspaceState

STATE: Final = "/var/lib/agentctl/state"
"""Below a directory that the image closes to all but agentctl."""
HOME: Final = "/home/agent"


@dataclass(frozen=True, slots=True)
class Ground:
    """What one container is made on."""

    worktree: Worktree
    """As the container sees it."""
    mounts: Sequence[Mapping[str, Any]]
    user: str
    """``UID:GID`` of the files, and of the agent."""
    before_start: Callable[[Engine, str], None]
    """Called with the engine and the container's name before each start: the token has to be there."""
    rebuilt: str = ""
    """The workspace was lost: from what it was made again, as a sentence for people."""


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

    def ground(self, engine: Engine, spec: LaunchSpec, *, lives: bool) -> Ground:
        """Make the workspace, or find it; ``lives``: its container runs, nothing is made. Blocks.

        WorkspaceGone, RepositoryUnusable, LaunchFailed, RuntimeUnavailable, OSError.
        """
        ...

    def workspace_of(self, one: ExecutionFacts, container: Container | None) -> tuple[WorkspaceState, str]:
        """Whether a dead one's worktree can be had, and the precise reason if not; blocks, writes nothing.

        Raises RuntimeUnavailable, LaunchFailed where the engine gives no answer.
        """
        ...

    def is_gone(self, one: ExecutionFacts) -> bool:
        """Whether the absence of a container proves a death, where no launch has told of its engine."""
        ...
