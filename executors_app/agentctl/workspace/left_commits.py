"""Keep the commits that an agent made beside its branch and left again, which no snapshot contains.

A snapshot holds what is checked out. ``git switch -c x``, a commit, and ``git switch -`` within one turn leave commits
that only this repository has: on a branch that is not the session's, in a stash, or on no branch at all. They are set
aside under refs of the session, which every backup contains. The reflog of HEAD names the commits that were left; where
the repository belongs to the session alone, the refs that have changed do, too. Both can be written by the agent: they
cost it limits in number and size, and never touch any other ref.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from executors_app.machine.git import git_directory
from executors_app.machine.git.recovery_snapshots import KEPT_PREFIX
from executors_app.machine.git.workspace_git import GitError, GitOutput

MAX_KEPT_AT_ONCE: Final = 20
"""Maximum number of refs that one snapshot sets aside."""
MAX_KEPT: Final = 50
"""Maximum number of refs of a session; a backup contains no more."""
MAX_KEPT_BYTES: Final = 100 << 20
"""Maximum size of the objects that one snapshot sets aside."""
REFLOG_BYTES: Final = 64 << 10
_MAX_REFS: Final = 500
_MAX_COMMITS: Final = 5000
_LEFT: Final = re.compile(
    rb"^(?P<commit>[0-9a-f]{40}(?:[0-9a-f]{24})?) [0-9a-f]{40,64} [^\t]*\tcheckout: moving from (?P<name>\S+) to \S+$"
)
"""A line of HEAD's reflog at which the agent went from a commit to another branch."""
_OWN_REFS: Final = ("refs/heads/", "refs/tags/", "refs/stash")
_SURVIVING: Final = ("--branches", "--tags")
"""In a repository of several sessions, branches and tags outlive a lost worktree."""

RunGit = Callable[..., GitOutput]


@dataclass(slots=True)
class RefMemory:
    """What was seen at the last snapshot of this process; None before the first."""

    owns_repository: bool = False
    """Whether nobody else uses the repository, so that every changed ref is the agent's."""
    refs: Mapping[str, str] | None = None
    reflog: bytes | None = None


@dataclass(frozen=True, slots=True)
class LeftCommits:
    """What was set aside."""

    kept: Mapping[str, str] = field(default_factory=dict)
    """The branch or ref of each commit that was set aside now."""
    left_out: Mapping[bytes, str] = field(default_factory=dict)
    """Why others were not, by a name for people."""


def keep_left_commits(git: RunGit, own: Path, head: str, session_id: str, memory: RefMemory) -> LeftCommits:
    """Set aside what has been left since the last snapshot; raises GitError.

    Args:
        git: Runs git in the workspace.
        own: The git directory with the HEAD of the workspace.
        head: The checked-out commit, which the snapshot contains; empty before the first.
        session_id: The session that owns the workspace.
        memory: What was seen at the last snapshot; updated.
    """
    reflog = git_directory.read_file_end(own / "logs" / "HEAD", REFLOG_BYTES) or b""
    refs: dict[str, str] = {}
    if memory.owns_repository:
        refs = _list_refs(git)
    before = (memory.refs, memory.reflog)
    if before == (refs, reflog):
        return LeftCommits()
    memory.refs, memory.reflog = refs, reflog
    candidates = left_in_reflog(reflog)
    refs_before = before[0]
    if refs_before is not None:
        candidates |= {commit: name for name, commit in refs.items() if refs_before.get(name) != commit}
    if not candidates:
        return LeftCommits()
    prefix = f"{KEPT_PREFIX}{session_id}/"
    saved = [f"--glob={prefix}*", "--glob=refs/heads/kandev/*", "--remotes"]
    if head:
        saved.append(head)
    if not memory.owns_repository:
        saved += _SURVIVING
    try:
        return _keep_unsaved(git, prefix, candidates, saved)
    except GitError as error:
        # What a full disk has prevented is tried again with the next snapshot. What was too slow is not: it would use
        # up the time of every snapshot.
        if error.exit_code is not None:
            memory.refs, memory.reflog = before
        raise


def _list_refs(git: RunGit) -> dict[str, str]:
    """Return the commit of each ref, the newest commit last, as in the reflog."""
    options = (f"--count={_MAX_REFS}", "--sort=-committerdate", "--format=%(objectname) %(refname)")
    lines = git("for-each-ref", *options, *_OWN_REFS).text.splitlines()
    pairs = [line.split(" ", 1) for line in lines]
    return {name: commit for commit, name in reversed(pairs)}


def left_in_reflog(reflog: bytes) -> dict[str, str]:
    """Return the commits at which the agent left a branch, with the name of that branch."""
    found = [_LEFT.match(line) for line in reflog.splitlines()]
    return {match["commit"].decode(): match["name"].decode("utf-8", "replace") for match in found if match}


def _keep_unsaved(git: RunGit, prefix: str, candidates: Mapping[str, str], saved: Sequence[str]) -> LeftCommits:
    newest = list(candidates)[-_MAX_REFS:]
    # Objects that have been deleted since are ignored.
    arguments = ("rev-list", "--ignore-missing", "--topo-order", "--parents", f"--max-count={_MAX_COMMITS}")
    listed = git(*arguments, *newest, "--not", *saved).text.splitlines()
    commits: set[str] = set()
    parents: set[str] = set()
    for line in listed:
        commit, *parents_of_commit = line.split(" ")
        commits.add(commit)
        parents.update(parents_of_commit)
    tips = [commit for commit in newest if commit in commits - parents]
    if not tips:
        return LeftCommits()
    room = MAX_KEPT - len(git("for-each-ref", "--format=%(refname)", prefix).text.splitlines())
    return _set_aside(git, prefix, {tip: candidates[tip] for tip in reversed(tips)}, saved, room)


def _set_aside(git: RunGit, prefix: str, tips: Mapping[str, str], saved: Sequence[str], room: int) -> LeftCommits:
    """Create a ref for each commit, the newest first, within the limits."""
    kept: dict[str, str] = {}
    left_out: dict[bytes, str] = {}
    used = 0
    for commit, name in tips.items():
        described = f"commit {commit[:12]} on {name[:100]}".encode()
        if len(kept) >= min(MAX_KEPT_AT_ONCE, room):
            left_out[described] = "too many commits beside the branch are set aside already"
            continue
        # Without the commits before, which are kept already or known elsewhere.
        size = git("rev-list", "--disk-usage", "--objects", commit, "--not", *saved, *kept).text
        if size.isdecimal():
            used += int(size)
        if used > MAX_KEPT_BYTES:
            left_out[described] = f"the commits beside the branch are larger than {MAX_KEPT_BYTES >> 20} MiB"
            continue
        git("update-ref", "--no-deref", f"{prefix}{commit[:16]}", commit)
        kept[commit] = name
    return LeftCommits(kept, left_out)
