"""Runtime ``local_docker``: each session in a container of a Docker engine on this machine, found by its labels.

Everything is found by the execution id: the container's name and labels, its network, the state directory.
Worktree, journal and the agent's home are on this machine's disk and outlive the container.
Workspaces of earlier releases are converted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from django.conf import settings

from executors_app import workspace_store
from executors_app.agentctl.local_runtime import storage
from executors_app.agentctl.process import identity
from executors_app.agentctl.workspace import workspace_root
from executors_app.agentctl.workspace.workspace_root import CONVERTED_DIRECTORY
from executors_app.agentctl.workspace.worktrees import Worktree
from executors_app.containers import sites
from executors_app.containers.connection import EngineAddress, read_docker_config
from executors_app.containers.engine import Container, Engine
from executors_app.containers.runtime import DockerRuntime
from executors_app.containers.sites import HOME_PATH, STATE_PATH, ContainerSetup, Site, bind_mount
from executors_app.domain import ExecutionFacts, LaunchSpec, WorkspaceState
from executors_app.errors import LaunchFailed
from executors_app.repositories.team import TeamRepository
from executors_app.untrusted_files import copy_directory, is_plain_directory, read_file_below
from executors_app.workspace_store import LocalStateMixin

log = logging.getLogger(__name__)

_OF_THE_REPOSITORY: Final = ("commondir", "gitdir", "config.worktree", "locked", "index.lock", "HEAD.lock", "hooks")
"""Files of a worktree record that point git elsewhere or are locks."""


def convert_earlier_workspace(engine: Engine, spec: LaunchSpec, into: Path) -> bool:
    """Copy an earlier release's workspace to where agentctl migrates it from; return False if there is none.

    Blocks. Raises LaunchFailed while another session's container still uses it, RepositoryUnusable, OSError.
    """
    worktree = Path(spec.worktree_path)
    if not is_plain_directory(worktree):
        return False
    labels = [f"{name}={value}" for name, value in sites.deployment_labels().items()]
    ours = {"label": labels, "status": ["running", "paused"]}
    for one in engine.ask(lambda client: client.containers(filters=ours)):
        if str(worktree) in {str(mount.get("Source")) for mount in one.get("Mounts") or ()}:
            raise LaunchFailed(
                "Another session still uses this worktree in a container of an earlier release. Stop that session, "
                "then try again."
            )
    draft = into.with_name(f".{into.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    left = draft / CONVERTED_DIRECTORY
    copy_directory(worktree, left / "tree", leave_out=(".git",))
    record = _record(Path(spec.repository_path), spec.worktree_owner)
    if is_plain_directory(record.parent) and is_plain_directory(record):
        copy_directory(record, left / "record", leave_out=_OF_THE_REPOSITORY)
    # The mark is written before the rename: once a newer snapshot arrives from the new workspace, the old
    # directory may be removed.
    _mark(worktree).write_text(_newest_snapshot(spec.worktree_owner))
    draft.rename(into)
    log.info("session %s: its workspace was copied to %s", spec.session_id, into)
    return True


def remove_converted_workspace(execution: ExecutionFacts) -> bool:
    """Remove a converted workspace's old directory once the new one has sent a snapshot; False if nothing to do.

    Its record is removed first: while that exists, the branch counts as checked out and is not published. Blocks.
    Raises RepositoryUnusable, OSError.
    """
    worktree, owner = Path(execution.worktree_path), execution.worktree_owner
    try:
        known = _mark(worktree).read_text()
    except FileNotFoundError:
        return False
    if _newest_snapshot(owner) in ("", known):
        return False
    for path in (_record(Path(execution.repository_path), owner), worktree):
        if is_plain_directory(path.parent) and is_plain_directory(path):
            shutil.rmtree(path)
    _mark(worktree).unlink()  # last: after a crash before this, the next call completes the removal
    return True


def _mark(worktree: Path) -> Path:
    """Return the file next to a converted worktree that records the newest snapshot at the time of the conversion."""
    return worktree.with_name(f".{worktree.name}.converted")


def _newest_snapshot(owner_id: str) -> str:
    return workspace_store.newest_snapshot(owner_id) or ""


def _record(repository: Path, owner_id: str) -> Path:
    """Return git's record of the worktree in the team's repository, named after the directory (the id)."""
    return TeamRepository.open(repository).common / "worktrees" / owner_id


LOOPBACK: Final = "127.0.0.1"
_LARGEST_REFS: Final = 16 << 20


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
        token = storage.mint_launch_token(spec.auth_token)
        places.write_token(token)
        directory = workspace_directory(spec.worktree_owner)
        # The agent's home, with its logins and conversations, which every container keeps.
        home = Path(settings.KANDEV_DATA_DIR) / "agent_homes" / spec.session_id
        is_new = not directory.is_dir()
        if is_new and spec.worktree_path and convert_earlier_workspace(engine, spec, directory):
            rebuilt = workspace_store.prepare_seed(replace(spec, worktree_path=""), places.seed_file, borrows=True)
        else:
            lost = lost or (f"The workspace {directory} was deleted." if is_new and spec.worktree_path else "")
            rebuilt = workspace_store.prepare_seed(spec, places.seed_file, borrows=True, lost=lost)
        for path in (directory, home):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        mounts = [
            bind_mount(places.path, STATE_PATH),
            bind_mount(home, HOME_PATH),
            bind_mount(
                workspace_store.object_store_directory(Path(spec.repository_path)),
                workspace_root.BORROWED_REPOSITORY,
                read_only=True,
            ),
            bind_mount(directory, root),
        ]
        return ContainerSetup(root, worktree, mounts, self.user, lambda engine, name: None, token, rebuilt)

    def workspace_state(self, execution: ExecutionFacts, container: Container | None) -> tuple[WorkspaceState, str]:
        """Inspect plain files only; git is not run, because the agent can write git's files."""
        if not execution.worktree_path:
            return WorkspaceState.REBUILDABLE, ""
        owner, branch = execution.worktree_owner, execution.worktree_branch
        directory = workspace_directory(owner)
        if not directory.is_dir():
            if is_plain_directory(Path(execution.worktree_path)):  # of an earlier release
                return WorkspaceState.PRESENT, ""
            return workspace_store.lost_workspace_state(owner, f"The workspace {directory} was deleted.", branch)
        if read_file_below(directory, f"worktrees/{owner}/.git") is not None:
            return WorkspaceState.PRESENT, ""
        if _has_branch(directory / "repository.git", branch):
            return WorkspaceState.REBUILDABLE, ""
        lost = f"The worktree {execution.worktree_path} and its branch {branch} were deleted."
        return workspace_store.lost_workspace_state(owner, lost, branch)

    def workspace_mounts(self, execution: ExecutionFacts) -> list[Mapping[str, Any]]:
        """Mount the directory on this machine and the object store that its repository borrows from."""
        borrowed = workspace_store.object_store_directory(Path(execution.repository_path))
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

    A session of an earlier release keeps its path, because agents find their conversations by directory.
    """
    place = workspace_root.sandbox_worktree_path(
        workspace_root.WORKSPACE_ROOT, spec.worktree_owner, spec.worktree_branch
    )
    return Worktree(Path(spec.worktree_path) if spec.worktree_path else place.path, place.branch)


def workspace_directory(owner_id: str) -> Path:
    """Return the workspace's directory; the agent can write everything in it."""
    return Path(settings.KANDEV_DATA_DIR) / "workspaces" / owner_id


def _has_branch(repository: Path, branch: str) -> bool:
    if not is_plain_directory(repository):
        return False
    if read_file_below(repository, f"refs/heads/{branch}") is not None:
        return True
    packed = (read_file_below(repository, "packed-refs", limit=_LARGEST_REFS) or b"").decode(errors="replace")
    return any(line.endswith(f" refs/heads/{branch}") for line in packed.splitlines())


class LocalDocker(LocalStateMixin, DockerRuntime):
    """The runtime; keeps no state in memory."""

    name = "local_docker"
    shares_memory = True
    shares_worktrees = True

    def read(self, config: Mapping[str, Any]) -> LocalSite:
        """Return the site; see ``DockerConfig`` for the settings."""
        address, user = EngineAddress(settings.KANDEV_DOCKER_HOST), f"{os.geteuid()}:{os.getegid()}"
        return LocalSite(address, read_docker_config(config), LOOPBACK, LOOPBACK, user)

    async def push_work(self, execution: ExecutionFacts) -> bool:
        """Push as every Docker runtime does, then remove the old directory of a converted workspace."""
        is_new = await super().push_work(execution)
        if await asyncio.to_thread(remove_converted_workspace, execution):
            # While the old work tree has the branch checked out, it cannot be published.
            await super().push_work(execution)
        return is_new

    def addresses(self, configs: Iterable[Mapping[str, Any]]) -> set[EngineAddress]:
        """Return the one local engine, whatever executors there are."""
        return super().addresses([{}])


RUNTIME: Final = LocalDocker()
