"""The control plane's data directory: execution state, launch seeds, and archives that receive workspaces' work.

What has arrived in an archive is then published to the team's repository.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, ParamSpec, TypeVar

from django.conf import settings

from executors_app.fair_threads import FairThreads
from executors_app.machine.git import recovery_snapshots, worktrees
from executors_app.machine.git.git_directory import POINTER_LIMIT
from executors_app.machine.git.seeds import Seed, write_seed
from executors_app.machine.git.workspace_root import BORROWED_REPOSITORY
from executors_app.machine.process import identity
from executors_app.machine.storage import ExecutionStorage, StateDirectory
from executors_app.repositories import bare, ref_files
from executors_app.repositories.archive import Archive
from executors_app.repositories.layout import checked_out_branches
from executors_app.repositories.object_store import ObjectStore
from executors_app.repositories.team import TeamRepository
from executors_app.repositories.transfer import Pack
from executors_app.repositories.workspace_refs import WorkspaceRefs
from executors_app.wire.errors import RepositoryUnusable, WorkspaceGone
from executors_app.wire.executions import ExecutionFacts, LaunchSpec, WorkspaceState

_P = ParamSpec("_P")
_T = TypeVar("_T")

Download = Callable[[Sequence[str], IO[bytes]], Awaitable[dict[str, str]]]
"""Writes a bundle of what the given commits do not contain into a file; returns commits by ref."""
_BORROWED_OBJECTS: Final = f"{BORROWED_REPOSITORY}/objects"


_GIT_THREADS: Final = FairThreads(16, "git")
"""Git may wait for a slot or a lock, and must not take the threads that everything else in the process runs in."""


Moves = dict[str, tuple[str, str]]
"""Refs, each with its current commit and its new commit."""


class LocalStateMixin:
    """Runtime methods that read a dead agentctl's state directory on this disk."""

    def can_manage(self, execution: ExecutionFacts) -> bool:
        """Whether it was never placed, runs in this boot of this machine, or left its files on this disk."""
        return execution.host_id in {"", identity.host_id()} or is_known_here(execution)

    def resume_token(self, execution: ExecutionFacts) -> str | None:
        """Read it from agentctl's state directory."""
        return execution_storage().resume_token(execution.id)

    def unread_journal(self, execution: ExecutionFacts, after: int, epoch: str) -> Sequence[Mapping[str, Any]]:
        """Read the journal's files; lines of earlier epochs come first, each names its epoch."""
        return execution_storage().unread_journal(execution.id, after, epoch)


def execution_storage() -> ExecutionStorage:
    """Return the storage in our data directory."""
    return ExecutionStorage(Path(settings.KANDEV_DATA_DIR), TeamRepository.open)


def state_directory_of(execution_id: str) -> StateDirectory:
    """Return the state directory of an execution."""
    return execution_storage().state_directory_of(execution_id)


def is_known_here(execution: ExecutionFacts) -> bool:
    """Whether the execution's state directory with its token is on this disk."""
    return execution_storage().is_known(execution)


def data_directory() -> Path:
    """Return the directory that contains archives and object stores."""
    return Path(settings.KANDEV_DATA_DIR)


def workspace_archive(owner_id: str) -> Archive:
    """Return a workspace's archive, which may not exist yet."""
    return Archive.of(data_directory(), owner_id)


def object_store_directory(execution: LaunchSpec | ExecutionFacts) -> Path:
    """Return the directory of the team's published objects, which sandboxes read; ``prepare_seed`` creates it."""
    return _object_store(TeamRepository.open(Path(execution.repository_path)), execution).path


def _object_store(repository: TeamRepository, execution: LaunchSpec | ExecutionFacts) -> ObjectStore:
    return ObjectStore.of(data_directory(), repository, execution.store_id)


def workspace_branch(execution: LaunchSpec | ExecutionFacts) -> str:
    """Return the branch of a workspace; if the row has none yet, it follows from the owner's id."""
    named = execution.worktree_branch
    return named or worktrees.session_worktree(data_directory(), execution.worktree_owner).branch


@dataclass(frozen=True, slots=True)
class LaunchSources:
    """The repositories that a launch uses."""

    repository: TeamRepository
    store: ObjectStore
    archive: Archive

    @classmethod
    def of(cls, execution: LaunchSpec | ExecutionFacts) -> LaunchSources:
        """Open the team's repository that a row names; blocks. Raises RepositoryUnusable, GitFailed."""
        if not execution.repository_path:
            raise RepositoryUnusable("The task names no repository.")
        repository = TeamRepository.open(Path(execution.repository_path))
        store = _object_store(repository, execution)
        return cls(repository, store, Archive.of(data_directory(), execution.worktree_owner, store))

    def begin(self, execution: LaunchSpec | ExecutionFacts) -> None:
        """Create the archive with the workspace's branch, as the team's repository has it or else at the base.

        It has it if the data directory was lost or restored, or if the session was imported on another machine.
        """
        branch = workspace_branch(execution)
        ref = f"refs/heads/{branch}"
        if ref in self.archive.tips():
            return
        self.store.update()
        self.archive.adopt(branch)
        if ref not in self.archive.tips():
            self.archive.begin(branch, self.repository.start_of(execution.base_branch))
        publish(self.repository, self.archive, branch)


def prepare_seed(spec: LaunchSpec, into: Path, *, borrows: bool, lost: str = "") -> str:
    """Write the seed of a launch; blocks. Returns a sentence about what a lost workspace was rebuilt from.

    ``borrows``: the sandbox sees the team's published objects. ``lost``: why the workspace that was there cannot be
    used. Raises WorkspaceGone if nothing of it has arrived, RepositoryUnusable, GitFailed, OSError.
    """
    sources = LaunchSources.of(spec)
    sources.begin(spec)
    branch = workspace_branch(spec)
    borrow: tuple[str, ...] = ()
    if borrows:
        borrow = (_BORROWED_OBJECTS,)
    if spec.worktree_path and not lost:
        write_seed(Seed(branch, objects=borrow), into)
        return ""
    rebuilt = ""
    if lost and spec.worktree_path:
        rebuilt = _rebuilt(sources.archive, branch, lost)
    sources.store.update()
    sources.archive.write_seed(
        into,
        branch=branch,
        store=sources.store,
        carried=sources.repository.carried(),
        base=spec.base_branch or sources.repository.head().removeprefix("refs/heads/"),
        borrow=borrow,
        whole=True,
    )
    return rebuilt


def newest_snapshot_time(owner_id: str) -> str:
    """Return when the newest usable snapshot arrived, ISO 8601; empty if none has."""
    archive = workspace_archive(owner_id)
    if archive.exists():
        return archive.time_of(recovery_snapshots.session_recovery_ref(owner_id))
    return ""


def newest_snapshot(owner_id: str) -> str | None:
    """Return the commit of the newest snapshot that has arrived, '' if none has; blocks. Raises GitFailed.

    None: the workspace has no archive, because its work is not transferred.
    """
    archive = workspace_archive(owner_id)
    if archive.exists():
        return archive.tips().get(recovery_snapshots.session_recovery_ref(owner_id), "")
    return None


def lost_workspace_state(owner_id: str, lost: str, branch: str) -> tuple[WorkspaceState, str]:
    """Return whether a snapshot that has arrived can replace a lost workspace, and why it is gone if not."""
    if newest_snapshot_time(owner_id):
        return (WorkspaceState.REBUILDABLE, "")
    return (WorkspaceState.GONE, _gone(lost, branch))


def _gone(lost: str, branch: str) -> str:
    return f"{lost} No snapshot of branch {branch} had reached the control plane."


def _rebuilt(archive: Archive, branch: str, lost: str) -> str:
    at = newest_snapshot_time(archive.workspace_id)
    if not at:
        raise WorkspaceGone(_gone(lost, branch))
    source = f"{lost} It was rebuilt from the snapshot of {at}, the newest that had arrived."
    return f"{source} {recovery_snapshots.IGNORED_FILES_NOTE}"


async def receive_work(execution: ExecutionFacts, download: Download) -> bool:
    """Receive a workspace's branch and snapshots and publish them; False if nothing was new.

    Raises what ``download`` raises, PublicationRefused if the work has arrived but may not be published,
    RepositoryUnusable, GitFailed, OSError.
    """
    sources = await in_git_thread(execution.repository_path, _open_sources, execution)
    known = await in_git_thread(execution.repository_path, _known_commits, sources, execution)
    with tempfile.NamedTemporaryFile(dir=await asyncio.to_thread(_incoming_file), prefix="bundle-") as bundle:
        refs = await download(known, bundle)
        bundle.flush()
        return await in_git_thread(
            execution.repository_path, _import_bundle, sources, execution, Path(bundle.name), refs
        )


async def in_git_thread(repository: str, function: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs) -> _T:
    """Call a function that may wait for git's slots and locks; a slow ``repository`` leaves threads to others."""
    return await _GIT_THREADS.call(repository, partial(function, *arguments, **options))


def _open_sources(execution: ExecutionFacts) -> LaunchSources:
    sources = LaunchSources.of(execution)
    sources.begin(execution)
    return sources


def _known_commits(sources: LaunchSources, execution: ExecutionFacts) -> list[str]:
    """Return commits that need not be sent: what has arrived, and the workspace's base."""
    known = set(sources.archive.tips().values())
    if base := sources.repository.find_start(execution.base_branch):
        known.add(base)
    return sorted(known)[:100]


def _incoming_file() -> Path:
    directory = data_directory() / "archives" / "incoming"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return directory


def _import_bundle(sources: LaunchSources, execution: ExecutionFacts, bundle: Path, refs: dict[str, str]) -> bool:
    branch, before = workspace_branch(execution), sources.archive.tips()
    if bundle.stat().st_size:
        sources.archive.take_in(bundle, branch)
    sources.archive.follow(branch, refs)
    # Publish even if nothing was new: an earlier call may have been killed between import and publication.
    publish(sources.repository, sources.archive, branch)
    return sources.archive.tips() != before


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The outcome for each ref that was to be moved."""

    moved: dict[str, str] = field(default_factory=dict)
    """The refs that were moved, with their new commits."""
    refused: dict[str, str] = field(default_factory=dict)
    """The refs that were not moved, with the reasons."""


def publish(team: TeamRepository, archive: Archive, branch: str) -> PublishResult:
    """Move a workspace's branch, snapshot and set-aside commits from its archive into the team's repository.

    Moves no other ref and no branch that is checked out, and follows no symbolic ref. May be repeated after a crash
    anywhere. Raises PublicationRefused if the workspace has published as much as it may, RepositoryUnusable, GitFailed.
    """
    names = WorkspaceRefs(archive.workspace_id, branch)
    # One publication per workspace at a time. The git processes hold the lock, too: if this process is killed,
    # the next call waits for them, so its refs cannot be written before their objects.
    with bare.repository_lock(archive.path, folder=True) as held:
        archive.remove_leftovers()
        wanted = {ref: commit for ref, commit in archive.tips().items() if names.owns(ref)}
        here = team.refs()
        result = PublishResult()
        moves = {ref: (here.get(ref, ""), commit) for ref, commit in wanted.items() if here.get(ref) != commit}
        for ref in list(moves):
            if why := _reason_against(team, ref):
                result.refused[ref] = why
                del moves[ref]
        if moves:
            _send(team, archive, [commit for _, commit in moves.values()], here, held)
            groups = {ref: _with_kept(team, names, ref, move, here) for ref, move in moves.items()}
            _move(team, groups, result)
        return result


def _reason_against(team: TeamRepository, ref: str) -> str:
    """Return why a ref must not be moved; empty if it may. Reads files only."""
    if ref.startswith("refs/heads/") and ref in checked_out_branches(team.directory):
        return "This branch is checked out in the repository or one of its worktrees."
    if (team.directory.read(ref, POINTER_LIMIT) or b"").startswith(b"ref:"):
        return "This is a symbolic ref in the repository."
    ref_files.remove_stale_lock(team.directory, ref)
    return ""


def _send(team: TeamRepository, archive: Archive, commits: Sequence[str], here: Mapping[str, str], held: int) -> None:
    """Copy the commits and everything they reach that the repository's refs do not."""
    known = bare.object_types(archive.git, here.values())
    with archive.pack_for_publication(
        commits, [name for name, kind in known.items() if kind == "commit"], held
    ) as pack:
        if pack is not None:
            _add_pack(team, archive, pack, held)


def _add_pack(team: TeamRepository, archive: Archive, pack: Pack, held: int) -> None:
    """Add a pack, in place of earlier ones of the workspace. A crash leaves objects twice, and never not at all."""
    packs = archive.published_packs
    merged = packs.merge(pack, team.replaceable_packs(), (held,))
    team.add_pack(merged.pack, archive.workspace_id)
    packs.record(merged.pack)
    team.remove_packs(merged.replaces)
    packs.forget(merged.replaces)


def _move(team: TeamRepository, groups: Mapping[str, Moves], result: PublishResult) -> None:
    """Move the refs, those of each group all or none."""
    refused = team.update_ref_groups(groups)
    for ref, group in groups.items():
        if ref in refused:
            result.refused[ref] = refused[ref].message
        else:
            result.moved.update({name: after for name, (_, after) in group.items()})


def _with_kept(
    team: TeamRepository, names: WorkspaceRefs, ref: str, move: tuple[str, str], here: Mapping[str, str]
) -> Moves:
    """Return a move, with the branch's replaced commits set aside."""
    before, after = move
    group = {ref: move}
    if before and ref == names.branch and not bare.is_ancestor(team.git, before, after):
        aside = names.kept_as(before)
        if here.get(aside) != before:
            group[aside] = (here.get(aside, ""), before)
    return group
