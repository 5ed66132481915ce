"""The site of ``remote_docker``: workspace, journal and home are volumes of the engine, and outlive its containers.

A workspace that was lost is made again from the newest snapshot that had arrived, which the receipt tells, or not at
all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from executors_app import local_disk, workspace_store
from executors_app.agentctl.places import launch_token, workspace_root
from executors_app.containers import archives, mounts, names
from executors_app.containers.address import EngineAddress
from executors_app.containers.archives import Owner
from executors_app.containers.config import DockerConfig
from executors_app.containers.engine import Engine, EngineRefused, connected
from executors_app.containers.far_config import FarConfig
from executors_app.containers.helper import Helper
from executors_app.containers.shown import Container
from executors_app.containers.site import HOME, SEED, STATE, Ground
from executors_app.domain import ExecutionFacts, LaunchSpec, WorkspaceState

_REPOSITORY: Final = workspace_root.repository_in(workspace_root.ROOT)


@dataclass(frozen=True, slots=True)
class FarVolumes:
    """With an engine anywhere."""

    far: FarConfig

    @property
    def address(self) -> EngineAddress:
        """The engine."""
        return self.far.address

    @property
    def config(self) -> DockerConfig:
        """Image and limits."""
        return self.far.docker

    @property
    def publish(self) -> str:
        """As the executor says."""
        return self.far.publish

    @property
    def host(self) -> str:
        """As the executor says."""
        return self.far.host

    @property
    def user(self) -> str:
        """As the executor says."""
        return self.far.user

    def ground(self, engine: Engine, spec: LaunchSpec, *, lives: bool, lost: str) -> Ground:
        """The workspace's volume, which is left alone where the container runs."""
        root = workspace_root.ROOT
        worktree = workspace_root.worktree_in(root, spec.worktree_owner, spec.worktree_branch)
        if lives:
            token = _token_in(engine, spec.execution_id)
            return Ground(root, worktree, [], self.far.user, lambda engine, name: None, token)
        if _volume(engine, work_of(spec.worktree_owner)) is None and spec.worktree_path:
            lost = f"The volume {work_of(spec.worktree_owner)} was removed."
        seed = local_disk.places_of(spec.execution_id).seed_file
        rebuilt = workspace_store.prepare(spec, seed, borrows=False, lost=lost)
        self._make_volumes(engine, spec, is_first=not spec.worktree_path or bool(lost))
        token = launch_token.mint(spec.auth_token)
        send = partial(self._send, seed=seed, token=token)
        return Ground(root, worktree, self._mounts(spec), self.far.user, send, token, rebuilt)

    def workspace_of(self, one: ExecutionFacts, container: Container | None) -> tuple[WorkspaceState, str]:
        """As far as the engine shows it without anything being started."""
        if not one.worktree_path:
            return WorkspaceState.REBUILDABLE, ""
        with connected(self.address) as engine:
            lost = _what_is_lost(engine, one, container)
        if not lost:
            return WorkspaceState.PRESENT, ""
        if lost == REBUILDABLE:
            return WorkspaceState.REBUILDABLE, ""
        if workspace_store.arrived_at(one.worktree_id or one.session_id):
            return WorkspaceState.REBUILDABLE, ""
        return WorkspaceState.GONE, workspace_store.reason_gone(lost, one.worktree_branch)

    def token_of(self, one: ExecutionFacts) -> str:
        """From its volume, through its container."""
        with connected(self.address) as engine:
            return _token_in(engine, one.id)

    def is_gone(self, one: ExecutionFacts) -> bool:
        """Nothing but this engine was ever asked for it."""
        return True

    def workspace_mounts(self, one: ExecutionFacts) -> list[Mapping[str, Any]]:
        """The volume."""
        return [mounts.volume(work_of(one.worktree_id or one.session_id), workspace_root.ROOT)]

    def helper(self, one: ExecutionFacts | LaunchSpec, *mounts: Mapping[str, Any]) -> Helper:
        """For the volumes of an execution."""
        execution_id = one.execution_id if isinstance(one, LaunchSpec) else one.id
        return Helper(execution_id, one.session_id, self.config, self.far.user, mounts)

    @contextmanager
    def left(self, engine: Engine, one: ExecutionFacts) -> Iterator[str | None]:
        """A container that the state of a dead agentctl can be read from; None where none is kept."""
        container = engine.find(names.name_of(one.id))
        if container is not None:
            yield container.id
        elif _volume(engine, state_of(one.id)) is None:
            yield None
        else:
            with self.helper(one, mounts.volume(state_of(one.id), STATE)).made(engine, "left") as name:
                yield name

    def _mounts(self, spec: LaunchSpec) -> list[Mapping[str, Any]]:
        places = {state_of(spec.execution_id): STATE, home_of(spec.session_id): HOME}
        own = [mounts.volume(name, target) for name, target in places.items()]
        return [*own, mounts.volume(work_of(spec.worktree_owner), workspace_root.ROOT)]

    def _make_volumes(self, engine: Engine, spec: LaunchSpec, *, is_first: bool) -> None:
        labels = names.labels_of(spec.execution_id, spec.session_id, spec.task_id)
        wanted = (state_of(spec.execution_id), home_of(spec.session_id), work_of(spec.worktree_owner))
        is_new = [_volume(engine, name) is None for name in wanted]
        for name in wanted:
            engine.ask(partial(_make_volume, name=name, labels=labels))
        if is_first or any(is_new):
            # A new volume is root's. Its owner is set from a container that is never started: in the session's own,
            # the root directory is read-only, and root has no right to give a file away.
            owned = [str(place).strip("/") for place in (workspace_root.ROOT, HOME, STATE)]
            with self.helper(spec, *self._mounts(spec)).made(engine, "volumes") as container:
                archives.send(engine, container, "/", Owner.of(self.far.user), {}, owned=owned)

    def _send(self, engine: Engine, container: str, seed: Path, token: str) -> None:
        """Put token and seed into agentctl's volume."""
        files: dict[str, bytes | Path] = {"token": token.encode(), Path(SEED).name: seed}
        archives.send(engine, container, STATE, Owner.of(self.far.user), files)


REBUILDABLE: Final = "rebuildable"


def _what_is_lost(engine: Engine, one: ExecutionFacts, container: Container | None) -> str:
    """Empty: nothing that shows; `REBUILDABLE`: what the volume itself still has; else what is gone, as a sentence."""
    volume = work_of(one.worktree_id or one.session_id)
    if _volume(engine, volume) is None:
        return f"The volume {volume} was removed."
    if container is None:
        return ""  # only a container shows what a volume holds: the launch will say
    look = partial(archives.read, engine, container.id)
    if look(f"{one.worktree_path}/.git"):
        return ""
    ref = f"refs/heads/{one.worktree_branch}"
    packed = (look(f"{_REPOSITORY}/packed-refs") or b"").decode(errors="replace")
    if look(f"{_REPOSITORY}/{ref}") or any(line.endswith(f" {ref}") for line in packed.splitlines()):
        return REBUILDABLE
    return f"The worktree {one.worktree_path} and its branch {one.worktree_branch} were deleted."


def _token_in(engine: Engine, execution_id: str) -> str:
    found = archives.read(engine, names.name_of(execution_id), f"{STATE}/token")
    return (found or b"").decode(errors="replace")


def state_of(execution_id: str) -> str:
    """The volume of agentctl's own things."""
    return f"kandev-state-{execution_id}"


def home_of(session_id: str) -> str:
    """The volume of the agent's home."""
    return f"kandev-home-{session_id}"


def work_of(owner_id: str) -> str:
    """The volume of the workspace, named after the session whose work tree it is."""
    return f"kandev-work-{owner_id}"


def _make_volume(client: Any, name: str, labels: dict[str, str]) -> None:
    client.create_volume(name, labels=labels)


def _volume(engine: Engine, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = engine.ask(lambda client: client.inspect_volume(name))
    except EngineRefused as error:
        if error.status == 404:
            return None
        raise
    return found
