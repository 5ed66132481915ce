"""The hidden ref that keeps a session's uncommitted work, and how it is brought back.

Two commits as in a stash: one of the index, and above it one of the working tree, whose parents are
HEAD and the index. Shared with the control plane, which rebuilds worktrees; each side brings its own
way to run git.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol

_PREFIX: Final = "refs/kandev/recovery/"
KEPT: Final = "refs/kandev/kept/"
_SESSION_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_LINE: Final = re.compile(r"^Kandev-(Head|Index|Session): (\S+)$", re.MULTILINE)
NONE: Final = "none"


class RunGit(Protocol):
    """Runs git in the repository and returns its output without the last line end; raises its own errors."""

    def __call__(self, *arguments: str) -> str:
        """``git ARGUMENTS``."""
        ...


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a recovery ref keeps."""

    commit: str
    """Its tree is the working tree's."""
    head: str
    """The commit that was checked out; empty before the first."""
    index: str
    """Its tree is the index's."""
    session_id: str


def ref_of(session_id: str) -> str:
    """The ref of a session; ValueError for an id that could name anything else."""
    if not _SESSION_ID.fullmatch(session_id):
        raise ValueError(f"{session_id!r} is no session id")
    return _PREFIX + session_id


def message_of(recovery: Recovery, reason: str, branch: str) -> str:
    """The message of the working tree's commit, from which ``parse`` reads the rest."""
    return (
        f"Working tree of {branch or 'a detached HEAD'} ({reason})\n\n"
        f"Kandev-Session: {recovery.session_id}\n"
        f"Kandev-Head: {recovery.head or NONE}\n"
        f"Kandev-Index: {recovery.index}\n"
    )


def find(git: RunGit, revision: str) -> Recovery | None:
    """The recovery at a ref or commit; None if something else or nothing is there."""
    found = git("for-each-ref", "--format=%(objectname)", revision) if revision.startswith("refs/") else revision
    if not found:
        return None
    body = git("cat-file", "commit", found)
    told = dict(_LINE.findall(body))
    if set(told) != {"Head", "Index", "Session"}:
        return None
    head = "" if told["Head"] == NONE else told["Head"]
    return Recovery(found, head, told["Index"], told["Session"])


def bring_back(git: RunGit, recovery: Recovery) -> None:
    """Make working tree and index what they were; tracked files that stand in the way are overwritten."""
    git("read-tree", "--reset", "-u", recovery.commit)
    git("read-tree", "--reset", recovery.index)
    git("update-index", "-q", "--refresh")


def set_aside(git: RunGit, recovery: Recovery) -> str:
    """Keep a recovery under a ref of its own, which no later one replaces; returns that ref."""
    ref = f"{KEPT}{recovery.session_id}/{recovery.commit[:16]}"
    git("update-ref", ref, recovery.commit)
    return ref
