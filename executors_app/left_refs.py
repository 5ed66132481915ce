"""The refs that a session has in its repository beside its branch: which there are, and whether they may go."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from executors_app.agentctl import recovery_ref
from executors_app.agentctl.places.git import commit_of, git, is_in

_RECOVERY: Final = "refs/kandev/recovery/"
_FOLDERS: Final = ("refs/kandev/kept/", "refs/kandev/arrived/")
Ref = tuple[str, str]
"""Name, and the commit that it names."""


def refs_of(repository: Path, session_id: str) -> list[Ref]:
    """All refs of a session; raises GitFailed, ValueError."""
    wanted = (recovery_ref.ref_of(session_id), *(f"{folder}{session_id}/" for folder in _FOLDERS))
    return _refs(repository, *wanted)


def kept_sessions(repository: Path) -> list[str]:
    """Ids of the sessions of which the repository keeps a snapshot; raises GitFailed."""
    return [name.removeprefix(_RECOVERY) for name, _ in _refs(repository, _RECOVERY)]


def adds_nothing(repository: Path, session_id: str, branch: str) -> Ref | None:
    """The session's snapshot, if its branch has every file of it as it is; None else. Raises GitFailed."""
    ref = recovery_ref.ref_of(session_id)
    kept = recovery_ref.find(partial(git, repository), ref)
    tip = commit_of(repository, f"refs/heads/{branch}") if branch else None
    if kept is None or tip is None or not kept.head or not is_in(repository, kept.head, tip):
        return None
    trees = {_tree(repository, commit) for commit in (kept.commit, kept.index, kept.head)}
    return (ref, kept.commit) if len(trees) == 1 else None


def drop(repository: Path, refs: Sequence[Ref]) -> bool:
    """Remove refs that still name what they did; raises GitFailed for one that was moved meanwhile."""
    for name, commit in refs:
        git(repository, "update-ref", "-d", name, commit)
    return bool(refs)


def _refs(repository: Path, *patterns: str) -> list[Ref]:
    said = git(repository, "for-each-ref", "--format=%(refname) %(objectname)", *patterns)
    return [(name, commit) for name, commit in (line.split(" ", 1) for line in said.splitlines())]


def _tree(repository: Path, commit: str) -> str:
    return git(repository, "rev-parse", "--verify", f"{commit}^{{tree}}")
