"""What a rebuilt worktree gets back beyond its branch: the session's last recovery snapshot.

Only on the commit that it was taken on: elsewhere its files would undo what was committed since, so
it is set aside under a ref of its own, and said.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from executors_app.agentctl import recovery_ref
from executors_app.agentctl.places.git import GitFailed, git
from executors_app.agentctl.recovery_ref import Recovery

logger = logging.getLogger(__name__)

_TIMEOUT: Final = 600.0


def find(repository: Path, session_id: str, head: str) -> Recovery | None:
    """The uncommitted work of a session that belongs on the commit ``head``; a damaged snapshot is said and left alone.

    Raises GitFailed where git had no time to look.
    """
    try:
        ref = recovery_ref.ref_of(session_id)
    except ValueError:
        return None
    run = partial(git, repository)
    try:
        found = recovery_ref.find(run, ref)
        if found:
            run("rev-list", "--objects", "--quiet", found.commit, "--not", head)
    except GitFailed as error:
        if "exit_code" not in error.details:
            raise
        logger.warning("session %s: its last snapshot is damaged and not brought back: %s", session_id, error)
        return None
    if found is None or found.session_id != session_id:
        return None
    if found.head != head:
        aside = recovery_ref.set_aside(run, found)
        logger.warning("session %s: its branch has moved on since the last snapshot, which is at %s", session_id, aside)
        return None
    return found


def bring_back(worktree: Path, kept: Recovery, held: int) -> None:
    """Into a worktree that was just made from its branch; ``held`` is the lock of its making."""
    recovery_ref.bring_back(partial(git, worktree, timeout=_TIMEOUT, hold=(held,)), kept)


def lay_over(draft: Path, where: Sequence[str], kept: Recovery, held: int) -> None:
    """Over the files of an index that survived, which stays as it is.

    What was staged after the snapshot is newer than the snapshot, so those files stay too.
    """
    run = partial(git, draft, *where, timeout=_TIMEOUT, hold=(held,))
    newer = set(_names(run("diff-index", "--cached", "--name-only", "--no-renames", "-z", kept.index)))
    between = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", kept.index, kept.commit)
    copy = draft.with_name(f"{draft.name}.index")
    run("read-tree", kept.commit, index=copy)
    written = [name for name in _names(run(*between, "--diff-filter=d")) if name not in newer]
    wanted = b"".join(os.fsencode(name) + b"\0" for name in written)
    run("checkout-index", "--force", "--quiet", "-z", "--stdin", index=copy, stdin=wanted)
    copy.unlink(missing_ok=True)
    for name in _names(run(*between, "--diff-filter=D")):
        if name not in newer and (draft / name).parent.resolve().is_relative_to(draft.resolve()):
            (draft / name).unlink(missing_ok=True)
    run("update-index", "-q", "--refresh")


def _names(listed: str) -> list[str]:
    return listed.split("\0")[:-1]
