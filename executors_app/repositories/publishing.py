"""Publish a workspace's refs from its archive to the team's repository."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from executors_app import untrusted_files
from executors_app.repositories import bare, transfer
from executors_app.repositories.archive import Archive
from executors_app.repositories.bare import WorkspaceRefs
from executors_app.repositories.git import GitFailed
from executors_app.repositories.team import POINTER_LIMIT, TeamRepository, checked_out_branches

Moves = dict[str, tuple[str, str]]
"""Refs, each with its current commit and its new commit."""
_STALE: Final = 300.0
"""Seconds after which a ref's lock file must be a killed git's: git holds it only for one rename."""


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
    anywhere. Raises RepositoryUnusable, GitFailed.
    """
    names = WorkspaceRefs(archive.workspace_id, branch)
    # One publication per workspace at a time. The git processes hold the lock, too: if this process is killed,
    # the next call waits for them, so its refs cannot be written before their objects.
    with bare.repository_lock(archive.path, folder=True) as held:
        wanted = {ref: commit for ref, commit in archive.tips().items() if names.owns(ref)}
        here = team.refs()
        result = PublishResult()
        moves = {ref: (here.get(ref, ""), commit) for ref, commit in wanted.items() if here.get(ref) != commit}
        for ref in list(moves):
            if why := _reason_against(team.common, ref):
                result.refused[ref] = why
                del moves[ref]
        if moves:
            _send(team, archive, [commit for _, commit in moves.values()], here, held)
            groups = {ref: _with_kept(team, names, ref, move, here) for ref, move in moves.items()}
            _move(team, groups, result, held)
        return result


def _reason_against(common: Path, ref: str) -> str:
    """Return why a ref must not be moved; empty if it may. Reads files only."""
    if ref.startswith("refs/heads/") and ref in checked_out_branches(common):
        return "This branch is checked out in the repository or one of its worktrees."
    if (untrusted_files.read_regular_file(common / ref, POINTER_LIMIT, follow=False) or b"").startswith(b"ref:"):
        return "This is a symbolic ref in the repository."
    # A git that was killed leaves its lock file behind, which would block this ref for ever.
    lock = common / f"{ref}.lock"
    with contextlib.suppress(OSError):
        if time.time() - lock.lstat().st_mtime > _STALE:
            lock.unlink()
    return ""


def _send(team: TeamRepository, archive: Archive, commits: Sequence[str], here: Mapping[str, str], held: int) -> None:
    """Copy the commits and everything they reach that the repository's refs do not."""
    known = bare.object_types(archive.git, here.values())
    with transfer.pack_to_file(
        archive.git, commits, [name for name, kind in known.items() if kind == "commit"]
    ) as pack:
        transfer.unpack_pack(pack, team.git, (held,))


def _move(team: TeamRepository, groups: Mapping[str, Moves], result: PublishResult, held: int) -> None:
    """Move all refs at once; if one was moved meanwhile, move each one separately."""
    together = {ref: pair for group in groups.values() for ref, pair in group.items()}
    try:
        bare.update_refs(team.git, together, (held,))
    except GitFailed:
        for ref, group in groups.items():
            try:
                bare.update_refs(team.git, group, (held,))
            except GitFailed as error:
                result.refused[ref] = error.message
            else:
                result.moved.update({name: after for name, (_, after) in group.items()})
    else:
        result.moved.update({name: after for name, (_, after) in together.items()})


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
