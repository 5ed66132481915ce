"""Runtime ``local_docker``: each session in a container of a Docker engine on this machine, found by its labels.

Everything is found by the execution id: the container's name and labels, its network, the state directory.
Worktree, journal and the agent's home are on this machine's disk and outlive the container.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from django.conf import settings

from executors_app.machine.git import workspace_root
from executors_app.machine.git.worktrees import Worktree, nothing_found, session_refs
from executors_app.machine.process import identity
from executors_app.machine.process.spawning import AGENTCTL_UID
from executors_app.machine.storage import StateDirectory
from executors_app.machine.untrusted_files import is_plain_directory, read_file_below
from executors_app.repositories import workspace_store
from executors_app.repositories.workspace_store import LocalStateMixin
from executors_app.runtimes.containers.config import read_docker_config
from executors_app.runtimes.containers.connection import EngineAddress
from executors_app.runtimes.containers.container import Container
from executors_app.runtimes.containers.engine import Engine
from executors_app.runtimes.containers.runtime import DockerRuntime
from executors_app.runtimes.containers.sites import HOME_PATH, STATE_PATH, ContainerSetup, Site, bind_mount
from executors_app.wire import launch_tokens
from executors_app.wire.errors import LaunchFailed
from executors_app.wire.executions import ExecutionFacts, LaunchSpec, WorkspaceState

log = logging.getLogger(__name__)

AGENT_UID: Final = AGENTCTL_UID + 1
"""User and group of agents and of their files if Kandev itself runs as root."""
_CHOWN_TIMEOUT: Final = 600.0

LOOPBACK: Final = "127.0.0.1"
_LARGEST_REFS: Final = 16 << 20


def agent_user() -> str:
    """Return ``UID:GID`` of agents and their files: ours, so that we can read them, but never root."""
    if os.geteuid() == 0:
        return f"{AGENT_UID}:{AGENT_UID}"
    return f"{os.geteuid()}:{os.getegid()}"


def give_to_agents(path: Path) -> None:
    """Make agents the owners of a directory and everything in it, unless it is theirs. Blocks; raises LaunchFailed.

    An agent of another session may be writing there: ``chown`` follows no links, and changes the directory itself last,
    so its owner shows that the change was completed.
    """
    if os.geteuid() != 0 or path.lstat().st_uid == AGENT_UID:
        return
    command = ["chown", "--recursive", "--no-dereference", "-P", agent_user(), "--", str(path)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_CHOWN_TIMEOUT)
    except (OSError, subprocess.SubprocessError) as error:
        raise LaunchFailed(f"The owner of {path} could not be changed to {agent_user()}: {error}") from error


class LocalSite(Site):
    """The site for this machine's own engine."""

    __slots__ = ()

    def prepare(self, engine: Engine, spec: LaunchSpec, *, is_running: bool, lost: str) -> ContainerSetup:
        """Prepare the workspace in the data directory."""
        worktree = container_worktree(spec)
        root = worktree.path.parent.parent
        places = workspace_store.state_directory_of(spec.execution_id)
        if is_running:
            return ContainerSetup(root, worktree, [], self.user, lambda engine, name: None, places.token())
        token = launch_tokens.mint_launch_token(spec.auth_token)
        places.write_token(token)
        directory = workspace_directory(spec.worktree_owner)
        # The agent's home, with its logins and conversations, which every container keeps.
        home = Path(settings.KANDEV_DATA_DIR) / "agent_homes" / spec.session_id
        if spec.worktree_path and not directory.is_dir():
            lost = lost or f"The workspace {directory} was deleted."
        rebuilt = workspace_store.prepare_seed(spec, places.seed_file, borrows=True, lost=lost)
        for path in (directory, home):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            give_to_agents(path)
        self._give_state(places)
        mounts = [
            bind_mount(places.path, STATE_PATH),
            bind_mount(home, HOME_PATH),
            bind_mount(
                workspace_store.object_store_directory(spec),
                workspace_root.BORROWED_REPOSITORY,
                read_only=True,
            ),
            bind_mount(directory, root),
        ]
        return ContainerSetup(root, worktree, mounts, self.user, lambda engine, name: None, token, rebuilt)

    def _give_state(self, places: StateDirectory) -> None:
        """Give the state directory to agentctl, which reads and writes as the agent's user."""
        if os.geteuid() != 0:
            return
        give_to_agents(places.path)
        for path in (places.token_file, places.seed_file):  # written anew for each start
            os.chown(path, AGENT_UID, AGENT_UID, follow_symlinks=False)

    def workspace_state(self, execution: ExecutionFacts, container: Container | None) -> tuple[WorkspaceState, str]:
        """Inspect plain files only; git is not run, because the agent can write git's files."""
        if not execution.worktree_path:
            return WorkspaceState.REBUILDABLE, ""
        owner, branch = execution.worktree_owner, execution.worktree_branch
        directory = workspace_directory(owner)
        if not directory.is_dir():
            return workspace_store.lost_workspace_state(owner, f"The workspace {directory} was deleted.", branch)
        if read_file_below(directory, f"worktrees/{owner}/.git") is not None:
            return WorkspaceState.PRESENT, ""
        if _has_ref(directory / "repository.git", session_refs(owner, branch)):
            return WorkspaceState.REBUILDABLE, ""
        lost = nothing_found(Worktree(Path(execution.worktree_path), branch))
        return workspace_store.lost_workspace_state(owner, lost, branch)

    def workspace_mounts(self, execution: ExecutionFacts) -> list[Mapping[str, Any]]:
        """Mount the directory on this machine and the object store that its repository borrows from."""
        borrowed = workspace_store.object_store_directory(execution)
        return [
            bind_mount(workspace_directory(execution.worktree_owner), workspace_root.WORKSPACE_ROOT),
            bind_mount(borrowed, workspace_root.BORROWED_REPOSITORY, read_only=True),
        ]

    def token_of(self, execution: ExecutionFacts) -> str:
        """Read it from this disk."""
        return workspace_store.state_directory_of(execution.id).token()

    def is_gone(self, execution: ExecutionFacts) -> bool:
        """Whether it was never placed, or was on this machine."""
        return execution.host_id in {"", identity.host_id()} or workspace_store.is_known_here(execution)


def container_worktree(spec: LaunchSpec) -> Worktree:
    """Return the worktree's path as the container sees it.

    A session keeps its path, because agents find their conversations by directory.
    """
    place = workspace_root.sandbox_worktree_path(
        workspace_root.WORKSPACE_ROOT, spec.worktree_owner, spec.worktree_branch
    )
    return Worktree(Path(spec.worktree_path or place.path), place.branch)


def workspace_directory(owner_id: str) -> Path:
    """Return the workspace's directory; the agent can write everything in it."""
    return Path(settings.KANDEV_DATA_DIR) / "workspaces" / owner_id


def _has_ref(repository: Path, refs: Sequence[str]) -> bool:
    """Whether a repository has one of the refs; reads plain files."""
    if not is_plain_directory(repository):
        return False
    if any(read_file_below(repository, ref) is not None for ref in refs):
        return True
    packed = (read_file_below(repository, "packed-refs", limit=_LARGEST_REFS) or b"").decode(errors="replace")
    return not {line.partition(" ")[2] for line in packed.splitlines()}.isdisjoint(refs)


class LocalDocker(LocalStateMixin, DockerRuntime):
    """The runtime; keeps no state in memory."""

    name = "local_docker"
    shares_memory = True
    bound_to_host = True
    shares_worktrees = True

    def read(self, config: Mapping[str, Any]) -> LocalSite:
        """Return the site; see ``DockerConfig`` for the settings."""
        address = EngineAddress(settings.KANDEV_DOCKER_HOST)
        return LocalSite(address, read_docker_config(config), LOOPBACK, LOOPBACK, agent_user())

    def addresses(self, configs: Iterable[Mapping[str, Any]]) -> set[EngineAddress]:
        """Return the one local engine, whatever executors there are."""
        return super().addresses([{}])


RUNTIME: Final = LocalDocker()
