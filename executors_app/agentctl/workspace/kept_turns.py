"""Keep the snapshots of past turns, so that what each of them has changed can still be shown.

A session's recovery ref names only the newest snapshot. One more ref names a commit whose parents are the last ones: a
session costs one ref, however many turns it has. All calls block.
"""

from __future__ import annotations

import logging
import re
from typing import Final

from executors_app.machine.git import recovery_snapshots
from executors_app.machine.git.branch_changes import EMPTY_TREES
from executors_app.machine.git.recovery_snapshots import session_turns_ref
from executors_app.machine.git.ref_locks import remove_as_agent
from executors_app.machine.git.workspace_git import GitError, WorkspaceGit

logger = logging.getLogger(__name__)
MAX_SNAPSHOTS: Final = 200
"""Snapshots that are kept: at least those of the last hundred turns."""
_ATTEMPTS: Final = 3
_COMMIT_ID: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def keep_turn_snapshot(git: WorkspaceGit, session_id: str, snapshot: str) -> bool:
    """Keep a snapshot with those before it, and let the oldest go; raises GitError.

    Sessions that share a worktree share the ref, so it is moved only from where it was read. An agent can let it name
    anything: then the snapshots begin anew.

    Returns:
        Whether those before it are still kept, if there were any.
    """
    ref = session_turns_ref(session_id)
    was_removed = False
    for attempt in range(_ATTEMPTS):
        before = _read_ref(git, ref)
        kept = _snapshots_of(git, before)
        if snapshot in kept:
            return True
        made, is_whole = _add_to(git, session_id, kept, snapshot)
        try:
            # The ref itself, wherever it leads: an agent can make it a symbolic ref to a branch.
            git.run("update-ref", "--no-deref", ref, made, before or "0" * len(snapshot))
        except GitError:
            if attempt == _ATTEMPTS - 1:
                raise
            if not before and not _read_ref(git, ref):
                was_removed = _remove_unreadable(git, ref)
        else:
            return is_whole and not was_removed and bool(kept or not before)
    return False


def _read_ref(git: WorkspaceGit, ref: str) -> str:
    """Return what a ref names; empty if there is none, or git cannot read it."""
    return git.run("rev-parse", "--quiet", "--verify", ref, good=(0, 1)).text


def _snapshots_of(git: WorkspaceGit, commit: str) -> list[str]:
    """Return the snapshots that a commit of ours keeps, the oldest first; none if it is no such commit."""
    if not commit:
        return []
    kept = git.run("rev-parse", f"{commit}^@", good=(0, 128)).text.split()
    return kept if all(map(_COMMIT_ID.fullmatch, kept)) else []


def _add_to(git: WorkspaceGit, session_id: str, kept: list[str], snapshot: str) -> tuple[str, bool]:
    """Return a commit that keeps a snapshot too, and whether it keeps the earlier ones."""
    try:
        return _commit_of(git, session_id, [*kept, snapshot][-MAX_SNAPSHOTS:]), True
    except GitError as error:
        if not kept or error.exit_code is None:  # a timeout says nothing about the earlier ones
            raise
        logger.warning("the snapshots of earlier turns of %s cannot be read: %s", session_id, error)
    return _commit_of(git, session_id, [snapshot]), False


def _remove_unreadable(git: WorkspaceGit, ref: str) -> bool:
    """Remove the file of a ref that git can neither read nor replace; return True."""
    remove_as_agent(git.root / git.text("rev-parse", "--git-path", ref))
    return True


def _commit_of(git: WorkspaceGit, session_id: str, snapshots: list[str]) -> str:
    parents = [word for snapshot in snapshots for word in ("-p", snapshot)]
    tree, message = EMPTY_TREES[len(snapshots[0])], f"Snapshots of the last turns of {session_id}"
    return git.text("commit-tree", tree, *parents, "-m", message, environment=recovery_snapshots.IDENTITY)
