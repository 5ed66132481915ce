"""The site of ``local_docker``: workspace, journal and home are directories of this machine, seen by its containers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from django.conf import settings

from executors_app import local_disk, workspace_store
from executors_app.agentctl import identity
from executors_app.agentctl.places import launch_token, workspace_root
from executors_app.agentctl.places.worktrees import Worktree
from executors_app.containers import earlier_workspace
from executors_app.containers.address import EngineAddress
from executors_app.containers.config import DockerConfig
from executors_app.containers.engine import Engine
from executors_app.containers.mounts import bind
from executors_app.containers.shown import Container
from executors_app.containers.site import HOME, STATE, Ground
from executors_app.domain import ExecutionFacts, LaunchSpec, WorkspaceState
from executors_app.plain_files import is_plain_directory, read_plain

LOOPBACK: Final = "127.0.0.1"
_LARGEST_REFS: Final = 16 << 20


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

    def ground(self, engine: Engine, spec: LaunchSpec, *, lives: bool, lost: str) -> Ground:
        """The workspace in the data directory."""
        worktree = worktree_of(spec)
        root = worktree.path.parent.parent
        places = local_disk.places_of(spec.execution_id)
        if lives:
            return Ground(root, worktree, [], self.user, lambda engine, name: None, places.token())
        token = launch_token.mint(spec.auth_token)
        places.write_token(token)
        directory, home = workspace_of_owner(spec.worktree_owner), home_of(spec.session_id)
        is_new = not directory.is_dir()
        if is_new and spec.worktree_path and earlier_workspace.convert(engine, spec, directory):
            rebuilt = workspace_store.prepare(replace(spec, worktree_path=""), places.seed_file, borrows=True)
        else:
            lost = lost or (f"The workspace {directory} was deleted." if is_new and spec.worktree_path else "")
            rebuilt = workspace_store.prepare(spec, places.seed_file, borrows=True, lost=lost)
        for path in (directory, home):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        mounts = [
            bind(places.path, STATE),
            bind(home, HOME),
            bind(workspace_store.store_of(Path(spec.repository_path)), workspace_root.BORROWED, read_only=True),
            bind(directory, root),
        ]
        return Ground(root, worktree, mounts, self.user, lambda engine, name: None, token, rebuilt)

    def workspace_of(self, one: ExecutionFacts, container: Container | None) -> tuple[WorkspaceState, str]:
        """As far as plain files on this disk show it; git is not asked, because its files are the agent's."""
        if not one.worktree_path:
            return WorkspaceState.REBUILDABLE, ""
        owner = one.worktree_id or one.session_id
        directory = workspace_of_owner(owner)
        if not directory.is_dir():
            if earlier_workspace.is_there(Path(one.worktree_path)):
                return WorkspaceState.PRESENT, ""
            return _arrived_or_gone(one, f"The workspace {directory} was deleted.")
        if read_plain(directory, f"worktrees/{owner}/.git") is not None:
            return WorkspaceState.PRESENT, ""
        if _has_branch(directory / "repository.git", one.worktree_branch):
            return WorkspaceState.REBUILDABLE, ""
        return _arrived_or_gone(
            one, f"The worktree {one.worktree_path} and its branch {one.worktree_branch} were deleted."
        )

    @property
    def user(self) -> str:
        """Ours."""
        return f"{os.geteuid()}:{os.getegid()}"

    def workspace_mounts(self, one: ExecutionFacts) -> list[Mapping[str, Any]]:
        """The directory of this machine, and what its repository borrows."""
        borrowed = workspace_store.store_of(Path(one.repository_path))
        return [
            bind(workspace_of_owner(one.worktree_id or one.session_id), workspace_root.ROOT),
            bind(borrowed, workspace_root.BORROWED, read_only=True),
        ]

    def token_of(self, one: ExecutionFacts) -> str:
        """From this disk."""
        return local_disk.places_of(one.id).token()

    def is_gone(self, one: ExecutionFacts) -> bool:
        """It was never placed, or was here."""
        return one.host_id in {"", identity.host_id()} or local_disk.is_known_here(one)


def worktree_of(one: LaunchSpec) -> Worktree:
    """As the container sees it.

    A session of an earlier release keeps the path that its agent knows: conversations belong to a directory.
    """
    place = workspace_root.worktree_in(workspace_root.ROOT, one.worktree_owner, one.worktree_branch)
    return Worktree(Path(one.worktree_path) if one.worktree_path else place.path, place.branch)


def workspace_of_owner(owner_id: str) -> Path:
    """The workspace's directory: its repository and its work tree are below it, and the agent's to write."""
    return Path(settings.KANDEV_DATA_DIR) / "workspaces" / owner_id


def home_of(session_id: str) -> Path:
    """The agent's home: its logins and conversations, kept over every container."""
    return Path(settings.KANDEV_DATA_DIR) / "agent_homes" / session_id


def _has_branch(repository: Path, branch: str) -> bool:
    if not is_plain_directory(repository):
        return False
    if read_plain(repository, f"refs/heads/{branch}") is not None:
        return True
    packed = (read_plain(repository, "packed-refs", limit=_LARGEST_REFS) or b"").decode(errors="replace")
    return any(line.endswith(f" refs/heads/{branch}") for line in packed.splitlines())


def _arrived_or_gone(one: ExecutionFacts, lost: str) -> tuple[WorkspaceState, str]:
    if workspace_store.arrived_at(one.worktree_id or one.session_id):
        return WorkspaceState.REBUILDABLE, ""
    return WorkspaceState.GONE, workspace_store.reason_gone(lost, one.worktree_branch)
