"""The site of an engine on any machine: workspace, journal and home are in its volumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from executors_app.machine.git import workspace_root
from executors_app.machine.git.worktrees import Worktree, nothing_found, session_refs
from executors_app.repositories import workspace_store
from executors_app.runtimes.containers import archives, sites
from executors_app.runtimes.containers.archives import FileOwner
from executors_app.runtimes.containers.container import Container
from executors_app.runtimes.containers.engine import Engine, open_engine
from executors_app.runtimes.containers.helper import HelperContainer
from executors_app.runtimes.containers.sites import HOME_PATH, SEED_PATH, STATE_PATH, ContainerSetup, Site
from executors_app.wire import launch_tokens
from executors_app.wire.executions import ExecutionFacts, LaunchSpec, WorkspaceState

_REPOSITORY: Final = workspace_root.sandbox_repository_path(workspace_root.WORKSPACE_ROOT)

REBUILDABLE: Final = "rebuildable"


class RemoteSite(Site):
    """The site for an engine on any machine."""

    __slots__ = ()

    def prepare(self, engine: Engine, spec: LaunchSpec, *, is_running: bool, lost: str) -> ContainerSetup:
        """Prepare the workspace's volume, unless the container runs."""
        root = workspace_root.WORKSPACE_ROOT
        worktree = workspace_root.sandbox_worktree_path(root, spec.worktree_owner, spec.worktree_branch)
        if is_running:
            token = _read_token(engine, spec.execution_id)
            return ContainerSetup(root, worktree, [], self.user, lambda engine, name: None, token)
        if not _has_volume(engine, workspace_volume(spec.worktree_owner)) and spec.worktree_path:
            lost = f"The volume {workspace_volume(spec.worktree_owner)} was removed."
        seed = workspace_store.state_directory_of(spec.execution_id).seed_file
        rebuilt = workspace_store.prepare_seed(spec, seed, borrows=False, lost=lost)
        self._make_volumes(engine, spec, is_first=not spec.worktree_path or bool(lost))
        token = launch_tokens.mint_launch_token(spec.auth_token)
        send = partial(self._send, seed=seed, token=token)
        return ContainerSetup(root, worktree, self._mounts(spec), self.user, send, token, rebuilt)

    def workspace_state(self, execution: ExecutionFacts, container: Container | None) -> tuple[WorkspaceState, str]:
        """Inspect what the engine shows without starting anything."""
        if not execution.worktree_path:
            return WorkspaceState.REBUILDABLE, ""
        with open_engine(self.address) as engine:
            lost = _find_loss(engine, execution, container)
        if not lost:
            return WorkspaceState.PRESENT, ""
        if lost == REBUILDABLE:
            return WorkspaceState.REBUILDABLE, ""
        return workspace_store.lost_workspace_state(execution.worktree_owner, lost, execution.worktree_branch)

    def token_of(self, execution: ExecutionFacts) -> str:
        """Read it from its volume, through its container."""
        with open_engine(self.address) as engine:
            return _read_token(engine, execution.id)

    def is_gone(self, execution: ExecutionFacts) -> bool:
        """Return True: no other engine was ever asked to run it."""
        return True

    def workspace_mounts(self, execution: ExecutionFacts) -> list[Mapping[str, Any]]:
        """Mount the volume."""
        return [sites.volume_mount(workspace_volume(execution.worktree_owner), workspace_root.WORKSPACE_ROOT)]

    def helper(self, execution: ExecutionFacts | LaunchSpec, *mounts: Mapping[str, Any]) -> HelperContainer:
        """Return a helper container for an execution's volumes."""
        if isinstance(execution, LaunchSpec):
            execution_id = execution.execution_id
        else:
            execution_id = execution.id
        return HelperContainer(execution_id, execution.session_id, self.config, self.user, mounts)

    @contextmanager
    def left(self, engine: Engine, execution: ExecutionFacts) -> Iterator[str | None]:
        """Yield a container through which a dead agentctl's state can be read; None if no state is left."""
        container = engine.find(sites.container_name(execution.id))
        if container is not None:
            yield container.id
        elif not _has_volume(engine, state_volume(execution.id)):
            yield None
        else:
            with self.helper(execution, sites.volume_mount(state_volume(execution.id), STATE_PATH)).created(
                engine, "left"
            ) as name:
                yield name

    def _mounts(self, spec: LaunchSpec) -> list[Mapping[str, Any]]:
        places = {state_volume(spec.execution_id): STATE_PATH, home_volume(spec.session_id): HOME_PATH}
        own = [sites.volume_mount(name, target) for name, target in places.items()]
        return [*own, sites.volume_mount(workspace_volume(spec.worktree_owner), workspace_root.WORKSPACE_ROOT)]

    def _make_volumes(self, engine: Engine, spec: LaunchSpec, *, is_first: bool) -> None:
        labels = sites.execution_labels(spec.execution_id, spec.session_id, spec.task_id)
        wanted = (state_volume(spec.execution_id), home_volume(spec.session_id), workspace_volume(spec.worktree_owner))
        is_new = [not _has_volume(engine, name) for name in wanted]
        for name in wanted:
            engine.ask(partial(_make_volume, name=name, labels=labels))
        if is_first or any(is_new):
            # A new volume belongs to root. Its owner is set through a helper that is never started: in the
            # session's own container the root directory is read-only, and root lacks the capability to chown.
            owned = [str(place).strip("/") for place in (workspace_root.WORKSPACE_ROOT, HOME_PATH, STATE_PATH)]
            with self.helper(spec, *self._mounts(spec)).created(engine, "volumes") as container:
                archives.send_files(engine, container, "/", FileOwner.of(self.user), {}, owned=owned)

    def _send(self, engine: Engine, container: str, seed: Path, token: str) -> None:
        """Write token and seed into agentctl's volume."""
        files: dict[str, bytes | Path] = {"token": token.encode(), Path(SEED_PATH).name: seed}
        archives.send_files(engine, container, STATE_PATH, FileOwner.of(self.user), files)


def _find_loss(engine: Engine, execution: ExecutionFacts, container: Container | None) -> str:
    """Return what is lost as a sentence, ``REBUILDABLE`` if the volume still has the branch, empty if nothing."""
    volume = workspace_volume(execution.worktree_owner)
    if not _has_volume(engine, volume):
        return f"The volume {volume} was removed."
    if container is None:
        return ""  # only a container can show what a volume holds: a launch will find out
    read_file = partial(archives.read_small_file, engine, container.id)
    if read_file(f"{execution.worktree_path}/.git"):
        return ""
    refs = session_refs(execution.worktree_owner, execution.worktree_branch)
    packed = (read_file(f"{_REPOSITORY}/packed-refs") or b"").decode(errors="replace")
    known = {line.partition(" ")[2] for line in packed.splitlines()}
    if any(ref in known or read_file(f"{_REPOSITORY}/{ref}") for ref in refs):
        return REBUILDABLE
    return nothing_found(Worktree(Path(execution.worktree_path), execution.worktree_branch))


def _read_token(engine: Engine, execution_id: str) -> str:
    found = archives.read_small_file(engine, sites.container_name(execution_id), f"{STATE_PATH}/token")
    return (found or b"").decode(errors="replace")


def state_volume(execution_id: str) -> str:
    """Return the name of agentctl's volume."""
    return f"kandev-state-{execution_id}"


def home_volume(session_id: str) -> str:
    """Return the name of the volume of the agent's home."""
    return f"kandev-home-{session_id}"


def workspace_volume(owner_id: str) -> str:
    """Return the name of the workspace's volume; ``owner_id`` is the session that owns the worktree."""
    return f"kandev-work-{owner_id}"


def _make_volume(client: Any, name: str, labels: dict[str, str]) -> None:
    client.create_volume(name, labels=labels)


def _has_volume(engine: Engine, name: str) -> bool:
    return engine.find_any(lambda client: client.inspect_volume(name)) is not None
