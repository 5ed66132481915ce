"""The refs that a session has beside its branch, in the repository and in its archive, and whether they may go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from executors_app.agentctl import recovery_ref
from executors_app.local_disk import disk
from executors_app.repositories import bare
from executors_app.repositories.archive import Archive
from executors_app.repositories.team import TeamRepository

_RECOVERY: Final = "refs/kandev/recovery/"
_FOLDERS: Final = ("refs/kandev/kept/", "refs/kandev/arrived/")
Ref = tuple[str, str]
"""Name, and the commit that it names."""


def refs_of(repository: Path, session_id: str) -> list[Ref]:
    """All refs of a session in the team's repository; raises RepositoryUnusable, ValueError."""
    wanted = (recovery_ref.ref_of(session_id), *(f"{folder}{session_id}/" for folder in _FOLDERS))
    return list(TeamRepository.open(repository).refs(*wanted).items())


def kept_sessions(repository: Path) -> list[str]:
    """Ids of the sessions of which the repository keeps a snapshot; raises RepositoryUnusable."""
    return [name.removeprefix(_RECOVERY) for name in TeamRepository.open(repository).refs(_RECOVERY)]


def adds_nothing(repository: Path, session_id: str, branch: str) -> Ref | None:
    """The session's snapshot, if its branch has every file of it as it is; None else. Raises RepositoryUnusable."""
    team = TeamRepository.open(repository)
    ref = recovery_ref.ref_of(session_id)
    kept = recovery_ref.find(team.git.text, ref)
    tip = team.commit_of(f"refs/heads/{branch}") if branch else None
    if (
        kept is None
        or tip is None
        or not bare.OBJECT_ID.fullmatch(kept.head)
        or not bare.is_in(team.git, kept.head, tip)
    ):
        return None
    trees = {bare.tree_of(team.git, commit) for commit in (kept.commit, kept.index, kept.head)}
    return (ref, kept.commit) if len(trees) == 1 else None


def drop(repository: Path, session_id: str, refs: Sequence[Ref]) -> bool:
    """Remove refs that still name what they did; raises GitFailed for one that was moved meanwhile.

    From the session's archive too: what was still there would be published again.
    """
    team = TeamRepository.open(repository)
    archive = Archive.of(disk().root, session_id)
    archived = archive.tips()
    both = {name: commit for name, commit in refs if archived.get(name) == commit}
    if both:
        archive.drop(both)
    bare.move(team.git, {name: (commit, "") for name, commit in refs})
    return bool(refs)


def has_archive(session_id: str) -> bool:
    """Whether the archive of a session is on this machine."""
    return Archive.of(disk().root, session_id).exists()


def remove_archive(session_id: str) -> bool:
    """Remove the archive of a deleted session; True if there was one. Raises GitFailed, OSError."""
    archive = Archive.of(disk().root, session_id)
    there = archive.exists()
    archive.remove()
    return there
