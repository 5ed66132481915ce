"""The trash of worktrees: a directory beside that of the worktrees, into which one is renamed before it is deleted.

git's record of the worktree stays in the repository and is locked, so that ``git worktree prune`` keeps it: until the
worktree is deleted, renaming it back restores everything as it was.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from executors_app.machine.git.git_directory import linked_git_directory, read_git_file

_FOLDER: Final = "trash"
LOCK_REASON: Final = b"In the trash of Kandev."


def trash_of(worktree: Path) -> Path:
    """Return where a worktree is while it is in the trash."""
    return worktree.parent.parent / _FOLDER / worktree.name


def move_to_trash(worktree: Path, record: Path) -> None:
    """Rename a worktree into the trash and lock git's record of it; raises OSError, and then it is where it was."""
    trash = trash_of(worktree)
    trash.parent.mkdir(mode=0o700, exist_ok=True)
    (record / "locked").write_bytes(LOCK_REASON)
    try:
        worktree.rename(trash)
    except OSError:
        unlock(record)
        raise


def bring_back(worktree: Path) -> bool:
    """Rename a worktree back from the trash; return False if it is not there, or its place is taken. Raises OSError."""
    trash = trash_of(worktree)
    if not is_in_trash(worktree) or is_place_taken(worktree):
        return False
    worktree.parent.mkdir(mode=0o700, exist_ok=True)
    trash.rename(worktree)
    record = linked_git_directory(worktree)
    if record is not None:
        unlock(record)
    return True


def is_in_trash(worktree: Path) -> bool:
    """Whether a worktree is in the trash."""
    trash = trash_of(worktree)
    return trash.is_dir() and not trash.is_symlink()


def is_place_taken(worktree: Path) -> bool:
    """Whether there is something, other than an empty directory, where a worktree was."""
    if worktree.is_symlink() or not worktree.is_dir():
        return os.path.lexists(worktree)
    return any(worktree.iterdir())


def is_locked_by_others(record: Path) -> bool:
    """Whether someone has locked the worktree (``git worktree lock``), or git is still making it."""
    lock = record / "locked"
    return lock.is_symlink() or (lock.exists() and read_git_file(lock) != LOCK_REASON)


def unlock(record: Path) -> None:
    """Remove the lock that ``move_to_trash`` has written, and no other."""
    if read_git_file(record / "locked") == LOCK_REASON:
        with contextlib.suppress(OSError):
            (record / "locked").unlink()
