"""Keep the snapshots of past turns, so that what each of them has changed can still be shown.

A session's recovery ref names only the newest snapshot. One more ref names a commit whose parents are the last ones: a
session costs one ref, however many turns it has. All calls block.
"""

from __future__ import annotations

import re
from typing import Final

from executors_app.machine.git import recovery_snapshots
from executors_app.machine.git.branch_changes import EMPTY_TREES
from executors_app.machine.git.recovery_snapshots import session_turns_ref
from executors_app.machine.git.workspace_git import GitError, WorkspaceGit

MAX_SNAPSHOTS: Final = 200
"""Snapshots that are kept: at least those of the last hundred turns."""
_ATTEMPTS: Final = 3
_COMMIT_ID: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def keep_turn_snapshot(git: WorkspaceGit, session_id: str, snapshot: str) -> None:
    """Keep a snapshot with those before it, and let the oldest go; raises GitError.

    Sessions that share a worktree share the ref, so it is moved only from where it was read.
    """
    for attempt in range(_ATTEMPTS):
        ref = session_turns_ref(session_id)
        before, *kept = git.run("rev-parse", "--quiet", "--verify", ref, good=(0, 1)).text.split() or [""]
        if before:
            # An agent can let the ref name anything: then it begins anew.
            kept = git.run("rev-parse", f"{before}^@", good=(0, 128)).text.split()
            kept = kept if all(map(_COMMIT_ID.fullmatch, kept)) else []
        if snapshot in kept:
            return
        wanted = [*kept, snapshot][-MAX_SNAPSHOTS:]
        try:
            git.run("update-ref", ref, _commit_of(git, session_id, wanted), before or "0" * len(snapshot))
        except GitError:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return


def _commit_of(git: WorkspaceGit, session_id: str, snapshots: list[str]) -> str:
    parents = [word for snapshot in snapshots for word in ("-p", snapshot)]
    tree, message = EMPTY_TREES[len(snapshots[0])], f"Snapshots of the last turns of {session_id}"
    return git.text("commit-tree", tree, *parents, "-m", message, environment=recovery_snapshots.IDENTITY)
