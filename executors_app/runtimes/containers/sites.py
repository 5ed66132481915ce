"""What a container depends on: ownership labels, mounts, and the site that holds workspace, journal and home."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from executors_app.machine.git.worktrees import Worktree
from executors_app.runtimes.containers.config import DockerConfig
from executors_app.runtimes.containers.connection import EngineAddress
from executors_app.runtimes.containers.container import Container
from executors_app.runtimes.containers.engine import Engine
from executors_app.runtimes.deployment_labels import deployment_labels
from executors_app.wire.executions import ExecutionFacts, LaunchSpec, WorkspaceState

SESSION_LABEL: Final = "kandev.session"
TASK_LABEL: Final = "kandev.task"
EXECUTION_LABEL: Final = "kandev.execution"
HELPER_LABEL: Final = "kandev.helper"
"""Label of a helper container: the execution whose volumes it works on."""
SPEC_LABEL: Final = "kandev.spec"
"""Label with a hash of what the container was created from; a stopped one with another hash is recreated."""

STATE_PATH: Final = "/var/lib/agentctl/state"
"""State directory of agentctl, below a directory of the image that only agentctl can enter."""
SEED_PATH: Final = f"{STATE_PATH}/seed"
HOME_PATH: Final = "/home/agent"


def container_name(execution_id: str) -> str:
    """Return the name of the container and its network."""
    return f"kandev-{execution_id}"


def execution_labels(execution_id: str, session_id: str, task_id: str) -> dict[str, str]:
    """Return the labels of one execution's container."""
    return {**deployment_labels(), EXECUTION_LABEL: execution_id, SESSION_LABEL: session_id, TASK_LABEL: task_id}


def helper_labels(execution_id: str, session_id: str) -> dict[str, str]:
    """Return the labels of a helper container, which is never mistaken for the execution's own."""
    return {**deployment_labels(), HELPER_LABEL: execution_id, SESSION_LABEL: session_id}


def is_owned(labels: Mapping[str, str], execution_id: str, session_id: str) -> bool:
    """Whether a container belongs to that execution and was made by this deployment."""
    wanted = {**deployment_labels(), EXECUTION_LABEL: execution_id, SESSION_LABEL: session_id}
    return all(labels.get(name) == value for name, value in wanted.items())


def is_helper(labels: Mapping[str, str]) -> bool:
    """Whether a container is a short-lived helper beside an execution's own."""
    return HELPER_LABEL in labels and EXECUTION_LABEL not in labels


def labelled_execution(labels: Mapping[str, str]) -> str:
    """Return the execution that a container or helper belongs to; empty for none."""
    return labels.get(EXECUTION_LABEL) or labels.get(HELPER_LABEL, "")


def bind_mount(source: Path, target: Path | str, *, read_only: bool = False) -> dict[str, Any]:
    """Return a bind mount for the engine's API."""
    return {"Type": "bind", "Source": str(source), "Target": str(target), "ReadOnly": read_only}


def volume_mount(name: str, target: Path | str) -> dict[str, Any]:
    """Return a volume mount for the engine's API."""
    # Without NoCopy an empty volume would get the image's files and their owner.
    return {"Type": "volume", "Source": name, "Target": str(target), "VolumeOptions": {"NoCopy": True}}


@dataclass(frozen=True, slots=True)
class ContainerSetup:
    """What one container is created with."""

    root: Path
    """The workspace's directory inside the container."""
    worktree: Worktree
    """The worktree's path inside the container."""
    mounts: Sequence[Mapping[str, Any]]
    user: str
    """``UID:GID`` of the files, and of the agent."""
    before_start: Callable[[Engine, str], None]
    """Called with the engine and the container's name before each start, to put token and seed in place."""
    token: str = field(repr=False)
    """The bearer token of its agentctl, whether new or already running."""
    rebuilt: str = ""
    """What a lost workspace is rebuilt from, as a sentence for users; empty if it was not lost."""


@dataclass(frozen=True, slots=True)
class Site(ABC):
    """The settings of one executor, and where its containers keep their data."""

    address: EngineAddress
    config: DockerConfig
    """Image and limits."""
    publish: str
    """The address on the engine's machine where ports are published."""
    host: str
    """The host by which we reach such a port, as written in a URL."""
    user: str
    """``UID:GID`` of files and agents."""

    @abstractmethod
    def prepare(self, engine: Engine, spec: LaunchSpec, *, is_running: bool, lost: str) -> ContainerSetup:
        """Prepare what the container needs. Blocks.

        ``is_running``: it runs, so nothing is prepared. ``lost``: why its workspace cannot be used and must be rebuilt.
        Raises WorkspaceGone, RepositoryUnusable, LaunchFailed, RuntimeUnavailable, OSError.
        """

    @abstractmethod
    def workspace_state(self, execution: ExecutionFacts, container: Container | None) -> tuple[WorkspaceState, str]:
        """Return the state of a dead execution's worktree, and why it is gone; blocks, writes nothing.

        Raises RuntimeUnavailable, LaunchFailed if the engine gives no answer.
        """

    @abstractmethod
    def workspace_mounts(self, execution: ExecutionFacts) -> Sequence[Mapping[str, Any]]:
        """Return the mounts for reading a workspace below ``workspace_root.WORKSPACE_ROOT``."""

    @abstractmethod
    def token_of(self, execution: ExecutionFacts) -> str:
        """Return the last launch's token from its state directory; empty if there is none. Blocks.

        Raises RuntimeUnavailable, EngineRefused, OSError.
        """

    @abstractmethod
    def is_gone(self, execution: ExecutionFacts) -> bool:
        """Whether a missing container proves that the execution is dead although no launch has recorded its engine."""
