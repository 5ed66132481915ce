"""Workspaces of the releases whose containers had the team's own repository mounted, and how they are converted.

Such a workspace is a linked work tree of the team's repository, and everything in it was the agent's to write: the
``.git`` file, the record in the repository, its index. It is copied as plain files, no link is followed, and git
runs over the copy inside the new container only. The old place stays until the new one's first snapshot has arrived.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Final

from executors_app import workspace_store
from executors_app.agentctl.places.workspace_root import CONVERTED
from executors_app.containers import mounts, names
from executors_app.containers.engine import Engine
from executors_app.domain import ExecutionFacts, LaunchSpec
from executors_app.errors import LaunchFailed
from executors_app.plain_files import copy_plain, is_plain_directory
from executors_app.repositories.team import TeamRepository

log = logging.getLogger(__name__)

_OF_THE_REPOSITORY: Final = ("commondir", "gitdir", "config.worktree", "locked", "index.lock", "HEAD.lock", "hooks")
"""Of a record: what leads git to other places, or says who is at work."""


def is_there(worktree: Path) -> bool:
    """Whether an earlier release's work tree is at the path that the row names."""
    return is_plain_directory(worktree)


def convert(engine: Engine, spec: LaunchSpec, into: Path) -> bool:
    """Copy a workspace to where it is taken over from; False where there is none.

    Blocks. LaunchFailed while another session's container still has it, RepositoryUnusable, OSError.
    """
    worktree = Path(spec.worktree_path)
    if not is_there(worktree):
        return False
    for one in engine.ask(lambda client: client.containers(filters=_ours())):
        if str(worktree) in mounts.sources_of(one.get("Mounts")):
            raise LaunchFailed(
                "Another session still works in this worktree in a container of the earlier release. It is converted "
                "when that session is stopped."
            )
    draft = into.with_name(f".{into.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    left = draft / CONVERTED
    copy_plain(worktree, left / "tree", leave_out=(".git",))
    record = _record(Path(spec.repository_path), spec.worktree_owner)
    if is_plain_directory(record.parent) and is_plain_directory(record):
        copy_plain(record, left / "record", leave_out=_OF_THE_REPOSITORY)
    # From here on the old place may be removed, once a snapshot that was taken in the new one has arrived.
    _mark(worktree).write_text(_newest(spec.worktree_owner))
    draft.rename(into)
    log.info("session %s: its workspace was copied to %s", spec.session_id, into)
    return True


def remove_converted(one: ExecutionFacts) -> bool:
    """Remove the old place of a workspace whose new one has sent a snapshot; False where there is nothing to remove.

    Its record goes first: as long as that is there, the branch counts as checked out and is not published.
    Blocks. Raises RepositoryUnusable, OSError.
    """
    worktree, owner = Path(one.worktree_path), one.worktree_id or one.session_id
    try:
        known = _mark(worktree).read_text()
    except FileNotFoundError:
        return False
    if _newest(owner) in ("", known):
        return False
    for path in (_record(Path(one.repository_path), owner), worktree):
        if is_plain_directory(path.parent) and is_plain_directory(path):
            shutil.rmtree(path)
    _mark(worktree).unlink()
    return True


def _mark(worktree: Path) -> Path:
    """Beside a converted work tree: the newest snapshot of that time."""
    return worktree.with_name(f".{worktree.name}.converted")


def _newest(owner_id: str) -> str:
    return workspace_store.newest_snapshot(owner_id) or ""


def _record(repository: Path, owner_id: str) -> Path:
    """What the team's repository remembers of the work tree; git names it after the directory, which is the id."""
    return TeamRepository.open(repository).common / "worktrees" / owner_id


def _ours() -> dict[str, list[str]]:
    return {"label": [f"{name}={value}" for name, value in names.ours().items()], "status": ["running", "paused"]}
