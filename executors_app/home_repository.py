"""What goes from the team's repository to a far workspace, and what comes home from there.

Bundles cross the way. What comes home are the session's branch and its last snapshot: with them its history, files
and changes can be read, and its workspace rebuilt, whatever becomes of the far end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from executors_app.agentctl import recovery_ref
from executors_app.agentctl.places import worktrees
from executors_app.agentctl.places.git import commit_of, common_directory, git, is_in
from executors_app.errors import RepositoryUnusable

_TIMEOUT: Final = 600.0
_LOOK: Final = ("-c", "fetch.fsckObjects=true")
_COMMIT: Final = re.compile(r"[0-9a-f]{40,64}")


def make_branch(repository: Path, base: str, branch: str) -> None:
    """Let the session's branch be there, from ``base`` (empty: HEAD); RepositoryUnusable, GitFailed."""
    common_directory(repository)
    if commit_of(repository, f"refs/heads/{branch}") is None:
        git(repository, "branch", "--no-track", branch, worktrees.start_of(repository, base))


def pack(repository: Path, base: str, branch: str, session_id: str, into: Path) -> None:
    """Bundle the session's branch, its snapshot and its base with all their history; RepositoryUnusable, GitFailed."""
    names = [f"refs/heads/{branch}", recovery_ref.ref_of(session_id), *([f"refs/heads/{base}"] if base else [])]
    there = [name for name in names if commit_of(repository, name)]
    if not there:
        raise RepositoryUnusable(f"The repository {repository} has no branch {branch}.")
    git(repository, "bundle", "create", "--quiet", str(into), *there, timeout=_TIMEOUT)


def came_home(repository: Path, session_id: str, branch: str) -> str:
    """When the session's work last came home, ISO 8601; empty if it never did, or its branch was deleted since."""
    if not repository.is_dir() or commit_of(repository, f"refs/heads/{branch}") is None:
        return ""
    snapshot = recovery_ref.find(partial(git, repository), recovery_ref.ref_of(session_id))
    return git(repository, "log", "-1", "--format=%cI", snapshot.commit, "--") if snapshot else ""


def known(repository: Path, session_id: str, branch: str) -> list[str]:
    """Commits of the session that are here already."""
    names = (f"refs/heads/{branch}", recovery_ref.ref_of(session_id))
    return [commit for name in names if (commit := commit_of(repository, name))]


def take_in(repository: Path, bundle: Path, refs: Mapping[str, str], session_id: str, branch: str) -> None:
    """Let the session's branch and snapshot be what the far end says; no other ref is touched. GitFailed.

    What the branch had here and has no more is kept under a ref of its own.
    """
    wanted = (f"refs/heads/{branch}", recovery_ref.ref_of(session_id))
    told = {ref: commit for ref, commit in refs.items() if ref in wanted and _COMMIT.fullmatch(commit)}
    # What has not moved is named, and not packed.
    packed = _heads(repository, bundle) & set(told) if bundle.exists() else set()
    arrived = {ref: f"refs/kandev/arrived/{session_id}/{number}" for number, ref in enumerate(sorted(packed))}
    if arrived:
        came = [f"+{ref}:{place}" for ref, place in arrived.items()]
        options = ("--quiet", "--no-tags", "--no-write-fetch-head")
        git(repository, *_LOOK, "fetch", *options, str(bundle), *came, timeout=_TIMEOUT)
    for ref, commit in told.items():
        if commit_of(repository, commit):
            _move(repository, ref, commit, session_id)
    for place in arrived.values():
        git(repository, "update-ref", "-d", place)


def _heads(repository: Path, bundle: Path) -> set[str]:
    return {line.split(" ", 1)[1] for line in git(repository, "bundle", "list-heads", str(bundle)).splitlines()}


def _move(repository: Path, ref: str, commit: str, session_id: str) -> None:
    before = commit_of(repository, ref)
    if before == commit:
        return
    if before and ref.startswith("refs/heads/") and not is_in(repository, before, commit):
        git(repository, "update-ref", f"refs/kandev/kept/{session_id}/{before[:12]}", before)
    git(repository, "update-ref", ref, commit, *([before] if before else []))
