"""The hidden recovery ref that stores a session's uncommitted work, and its restoration into a rebuilt worktree."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from executors_app.agentctl.workspace.repository_git import RepositoryGitFailed, run_git

_RECOVERY_PREFIX: Final = "refs/kandev/recovery/"
KEPT_PREFIX: Final = "refs/kandev/kept/"
_SESSION_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_LINE: Final = re.compile(r"^Kandev-(Head|Index|Session): ([A-Za-z0-9][\w-]*)$", re.MULTILINE | re.ASCII)
"""An agent can write such a commit, too: no value may look like an option of git."""
NO_INDEX: Final = "none"


RunGit = Callable[..., str]
"""Runs git with its arguments, and returns its output without the last line end; raises its own errors."""


@dataclass(frozen=True, slots=True)
class RecoverySnapshot:
    """The content of a recovery ref."""

    commit: str
    """The commit whose tree is the working tree."""
    head: str
    """The commit that was checked out; empty before the first commit."""
    index: str
    """The commit whose tree is the index."""
    session_id: str


def session_recovery_ref(session_id: str) -> str:
    """Return the recovery ref of a session; raises ValueError for an id that is not safe in a ref."""
    if not _SESSION_ID.fullmatch(session_id):
        raise ValueError(f"{session_id!r} is not a session id")
    return _RECOVERY_PREFIX + session_id


def recovery_message(recovery: RecoverySnapshot, reason: str, branch: str) -> str:
    """Return the message of the working tree's commit, from which ``find_recovery`` reads the other fields."""
    return (
        f"Working tree of {branch or 'a detached HEAD'} ({reason})\n\n"
        f"Kandev-Session: {recovery.session_id}\n"
        f"Kandev-Head: {recovery.head or NO_INDEX}\n"
        f"Kandev-Index: {recovery.index}\n"
    )


def find_recovery(git: RunGit, revision: str) -> RecoverySnapshot | None:
    """Read the recovery at a ref or commit; None if there is none."""
    if revision.startswith("refs/"):
        found, _, body = git("for-each-ref", "--format=%(objectname)%0a%(contents)", revision).partition("\n")
    else:
        found, body = revision, git("cat-file", "commit", revision)
    trailers = dict(_LINE.findall(body))
    if set(trailers) != {"Head", "Index", "Session"}:
        return None
    head = "" if trailers["Head"] == NO_INDEX else trailers["Head"]
    return RecoverySnapshot(found, head, trailers["Index"], trailers["Session"])


def restore_recovery(git: RunGit, recovery: RecoverySnapshot) -> None:
    """Restore working tree and index; tracked files are overwritten."""
    git("read-tree", "--reset", "-u", recovery.commit)
    git("read-tree", "--reset", recovery.index)
    git("update-index", "-q", "--refresh")


def set_recovery_aside(git: RunGit, recovery: RecoverySnapshot) -> str:
    """Store a recovery under its own ref, which no later snapshot replaces, and return that ref."""
    ref = f"{KEPT_PREFIX}{recovery.session_id}/{recovery.commit[:16]}"
    git("update-ref", ref, recovery.commit)
    return ref


logger = logging.getLogger(__name__)

_TIMEOUT: Final = 600.0


def find_uncommitted_work(repository: Path, session_id: str, head: str) -> RecoverySnapshot | None:
    """Return a session's uncommitted work on top of the commit ``head``; a damaged snapshot is logged and kept.

    Raises RepositoryGitFailed on a timeout.
    """
    try:
        ref = session_recovery_ref(session_id)
    except ValueError:
        return None
    run = partial(run_git, repository)
    try:
        found = find_recovery(run, ref)
        if found:
            run("rev-list", "--objects", "--quiet", found.commit, "--not", head)
    except RepositoryGitFailed as error:
        if "exit_code" not in error.details:
            raise
        logger.warning("session %s: its last snapshot is damaged and was not restored: %s", session_id, error)
        return None
    if found is None or found.session_id != session_id:
        return None
    if found.head != head:
        aside = set_recovery_aside(run, found)
        logger.warning(
            "session %s: its branch has new commits since the last snapshot, which was kept at %s", session_id, aside
        )
        return None
    return found


def restore_uncommitted_work(worktree: Path, recovery: RecoverySnapshot, held: int) -> None:
    """Restore into a worktree that was just created from its branch; ``held`` is the descriptor of its lock."""
    restore_recovery(partial(run_git, worktree, timeout=_TIMEOUT, hold=(held,)), recovery)


def overlay_uncommitted_work(draft: Path, where: Sequence[str], recovery: RecoverySnapshot, held: int) -> None:
    """Restore over the files of an index that survived and stays unchanged.

    Files that were staged after the snapshot are newer than it, so they stay unchanged too.
    """
    run = partial(run_git, draft, *where, timeout=_TIMEOUT, hold=(held,))
    newer = set(_split_names(run("diff-index", "--cached", "--name-only", "--no-renames", "-z", recovery.index)))
    between = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", recovery.index, recovery.commit)
    copy = draft.with_name(f"{draft.name}.index")
    run("read-tree", recovery.commit, index=copy)
    written = [name for name in _split_names(run(*between, "--diff-filter=d")) if name not in newer]
    wanted = b"".join(os.fsencode(name) + b"\0" for name in written)
    run("checkout-index", "--force", "--quiet", "-z", "--stdin", index=copy, stdin=wanted)
    copy.unlink(missing_ok=True)
    for name in _split_names(run(*between, "--diff-filter=D")):
        if name not in newer and (draft / name).parent.resolve().is_relative_to(draft.resolve()):
            (draft / name).unlink(missing_ok=True)
    run("update-index", "-q", "--refresh")


def _split_names(listed: str) -> list[str]:
    return listed.split("\0")[:-1]
