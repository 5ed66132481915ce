"""The site of ``remote_docker``: worktree, journal and home are volumes of the engine, and outlive its containers.

The workspace is a clone, made of what the team's repository sent; what the session makes of it comes home after each
turn. A clone that was lost is made again from what came home, which is said, or not at all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from executors_app import home_repository
from executors_app.agentctl.places import volume
from executors_app.agentctl.places.git import GitFailed
from executors_app.agentctl.places.worktrees import Worktree
from executors_app.containers import archives, names
from executors_app.containers.address import EngineAddress
from executors_app.containers.archives import Owner
from executors_app.containers.config import DockerConfig
from executors_app.containers.engine import Engine, EngineRefused, connected
from executors_app.containers.far_config import FarConfig
from executors_app.containers.helper import Helper
from executors_app.containers.shown import Container
from executors_app.containers.site import HOME, STATE, Ground
from executors_app.domain import ExecutionFacts, LaunchSpec, WorkspaceState
from executors_app.errors import RepositoryUnusable, WorkspaceGone

_REPOSITORY: Final = volume.repository_in(volume.ROOT)


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

    def ground(self, engine: Engine, spec: LaunchSpec, *, lives: bool) -> Ground:
        """The clone, which is left alone where the container runs."""
        worktree = volume.worktree_in(volume.ROOT, spec.session_id, spec.worktree_branch)
        rebuilt = "" if lives else self._workspace(engine, spec, worktree)
        before_start = partial(self._send_token, token=spec.auth_token)
        return Ground(worktree, self._mounts(spec), self.far.user, before_start, rebuilt)

    def workspace_of(self, one: ExecutionFacts, container: Container | None) -> tuple[WorkspaceState, str]:
        """As far as the engine shows it without anything being started."""
        if not one.worktree_path:
            return WorkspaceState.REBUILDABLE, ""
        branch = one.worktree_branch
        with connected(self.address) as engine:
            lost = _what_is_lost(engine, one, container)
        if not lost:
            return WorkspaceState.PRESENT, ""
        if lost == REBUILDABLE:
            return WorkspaceState.REBUILDABLE, ""
        try:
            home = home_repository.came_home(Path(one.repository_path), one.session_id, branch)
        except GitFailed:
            return WorkspaceState.REBUILDABLE, ""  # no answer is no proof of a loss: the launch will say what is wrong
        return (WorkspaceState.REBUILDABLE, "") if home else (WorkspaceState.GONE, _never_home(lost, branch))

    def is_gone(self, one: ExecutionFacts) -> bool:
        """Nothing but this engine was ever asked for it."""
        return True

    def helper(self, one: ExecutionFacts | LaunchSpec, *mounts: dict[str, Any]) -> Helper:
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
            with self.helper(one, _mount(state_of(one.id), STATE)).made(engine, "left") as name:
                yield name

    def _mounts(self, spec: LaunchSpec) -> list[dict[str, Any]]:
        places = {state_of(spec.execution_id): STATE, home_of(spec.session_id): HOME}
        return [_mount(name, target) for name, target in places.items()] + [workspace_mount(spec.session_id)]

    def _workspace(self, engine: Engine, spec: LaunchSpec, worktree: Worktree) -> str:
        """Make or find it; what it had to be rebuilt from, if it was lost."""
        if not spec.repository_path:
            raise RepositoryUnusable("The task names no repository.")
        labels = names.labels_of(spec.execution_id, spec.session_id, spec.task_id)
        is_new = _volume(engine, work_of(spec.session_id)) is None
        for name in (state_of(spec.execution_id), home_of(spec.session_id), work_of(spec.session_id)):
            _make_volume(engine, name, labels)
        if not is_new:
            try:
                self._make(engine, spec, worktree)
                return ""
            except WorkspaceGone as error:
                lost = error.message
        else:
            lost = f"The volume {work_of(spec.session_id)} was removed."
        rebuilt = self._home_has(spec, worktree, lost) if spec.worktree_path else ""
        with tempfile.TemporaryDirectory(prefix="kandev-bundle-") as directory:
            bundle = Path(directory) / volume.INCOMING
            repository = Path(spec.repository_path)
            if not rebuilt:
                home_repository.make_branch(repository, spec.base_branch, worktree.branch)
            home_repository.pack(repository, spec.base_branch, worktree.branch, spec.session_id, bundle)
            self._make(engine, spec, worktree, bundle)
        return rebuilt

    def _home_has(self, spec: LaunchSpec, worktree: Worktree, lost: str) -> str:
        """What a lost workspace can be made again from, as a sentence; WorkspaceGone."""
        at = home_repository.came_home(Path(spec.repository_path), spec.session_id, worktree.branch)
        if not at:
            raise WorkspaceGone(_never_home(lost, worktree.branch))
        return f"{lost} It was made again from the snapshot of {at}, the last that had come home."

    def _make(self, engine: Engine, spec: LaunchSpec, worktree: Worktree, bundle: Path | None = None) -> None:
        arguments = ("make", "--session-id", spec.session_id, "--branch", worktree.branch)
        helper = self.helper(spec, *self._mounts(spec))
        places = [place.strip("/") for place in (str(volume.ROOT), HOME, STATE)]
        with helper.made(engine, "workspace", arguments) as name:
            files = {f"{places[0]}/{bundle.name}": bundle} if bundle else {}
            archives.send(engine, name, "/", Owner.of(self.far.user), files, owned=places)
            helper.run(engine, name)

    def _send_token(self, engine: Engine, container: str, token: str) -> None:
        archives.send(engine, container, STATE, Owner.of(self.far.user), {"token": token.encode()})


REBUILDABLE: Final = "rebuildable"


def _what_is_lost(engine: Engine, one: ExecutionFacts, container: Container | None) -> str:
    """Empty: nothing that shows; `REBUILDABLE`: what the volume itself still has; else what is gone, as a sentence."""
    if _volume(engine, work_of(one.session_id)) is None:
        return f"The volume {work_of(one.session_id)} was removed."
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


def _never_home(lost: str, branch: str) -> str:
    return f"{lost} Nothing of it that it could be made again from had come home to the branch {branch}."


def state_of(execution_id: str) -> str:
    """The volume of agentctl's own things."""
    return f"kandev-state-{execution_id}"


def home_of(session_id: str) -> str:
    """The volume of the agent's home."""
    return f"kandev-home-{session_id}"


def work_of(session_id: str) -> str:
    """The volume of the workspace."""
    return f"kandev-work-{session_id}"


def _mount(name: str, target: str) -> dict[str, Any]:
    # An empty volume would be given what the image has there, and its owner.
    return {"Type": "volume", "Source": name, "Target": target, "VolumeOptions": {"NoCopy": True}}


def workspace_mount(session_id: str) -> dict[str, Any]:
    """The mount of a session's workspace, in any container."""
    return _mount(work_of(session_id), str(volume.ROOT))


def _make_volume(engine: Engine, name: str, labels: dict[str, str]) -> None:
    engine.ask(lambda client: client.create_volume(name, labels=labels))


def _volume(engine: Engine, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = engine.ask(lambda client: client.inspect_volume(name))
    except EngineRefused as error:
        if error.status == 404:
            return None
        raise
    return found
