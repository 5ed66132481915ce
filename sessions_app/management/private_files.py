"""The data directory is for its owner alone: what an earlier version, a copy or a restore left open is closed."""

from __future__ import annotations

import logging
import os
import stat
import threading
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

MASK: Final = 0o077
"""The umask of our processes: nothing that they make is for others."""
OF_AGENTS: Final = frozenset({"worktrees", "workspaces", "agent_homes", "repositories"})
"""Folders that are closed themselves. In them agents give their files what modes they like, or sandboxes read ours."""


def make_private() -> None:
    """Whatever this process makes from here on is for its user alone."""
    os.umask(MASK)


def close_soon(directory: Path) -> None:
    """Close ``directory`` beside what goes on: there may be many files, and no agent waits for this."""
    threading.Thread(target=close_files, args=(directory,), name="private-files", daemon=True).start()


def close_files(directory: Path) -> int:
    """Take the rights of others from every file and folder below ``directory``; how many had some.

    Symbolic links are not followed. A file that cannot be changed is said, and keeps no other open.
    """
    closed = 0
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            closed += _close(Path(folder, name))
        if Path(folder) == directory:
            folders[:] = [name for name in folders if name not in OF_AGENTS]
    if closed:
        log.warning("%d files in %s could be read by others; now only their owner can", closed, directory)
    return closed


def _close(path: Path) -> bool:
    try:
        if not _is_open(path.lstat()):
            return False
        # Opened, and changed by its descriptor: a link that is put in its place meanwhile leads nowhere.
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            mode = os.fstat(descriptor)
            if _is_open(mode):
                Path(f"/proc/self/fd/{descriptor}").chmod(stat.S_IMODE(mode.st_mode) & ~MASK)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return False
    except OSError as error:
        log.warning("%s can be read by others, and that cannot be changed: %s", path, error.strerror)
        return False
    return True


def _is_open(found: os.stat_result) -> bool:
    """Whether others may do anything with it. A file with a second name, as an object of a clone, is not ours alone."""
    has_names = not stat.S_ISDIR(found.st_mode) and found.st_nlink > 1
    return bool(found.st_mode & MASK) and not stat.S_ISLNK(found.st_mode) and not has_names
