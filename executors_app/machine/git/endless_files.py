"""Pipes and devices in the place of files that git reads: it would wait for one until it is killed.

An agent can put one there. What is found beforehand costs only the repository that it is in.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from executors_app.machine.git import git_directory
from executors_app.machine.git.private_git_directory import common_directory_of

_WORKTREE_FILES: Final = (".gitattributes", ".gitignore", ".gitmodules")
_NOT_FOLLOWED: Final = (".gitattributes", ".gitignore")
"""Files that git does not read if they are symbolic links."""
_GIT_FILES: Final = (
    *("config", "config.worktree", "commondir", "gitdir", "index", "packed-refs", "shallow"),
    *("info/attributes", "info/exclude", "info/grafts", "info/sparse-checkout", "reftable/tables.list"),
    *("HEAD", "BISECT_LOG", "CHERRY_PICK_HEAD", "MERGE_HEAD", "ORIG_HEAD", "REBASE_HEAD", "REVERT_HEAD"),
)
_SEARCH_SECONDS: Final = 3.0


def find_endless_file(root: Path, *, with_refs: bool = False) -> str:
    """Return the path of a pipe or device that every git in a working tree would read; empty if there is none.

    ``with_refs`` examines the refs, too, which a repository that many share can have in any number.
    """
    own = git_directory.git_directory_of(root)
    paths = [root / name for name in _WORKTREE_FILES]
    for directory in dict.fromkeys((own, common_directory_of(own)) if own else ()):
        paths += [directory / name for name in _GIT_FILES]
        if with_refs:
            paths += _files_below(directory / "refs", time.monotonic() + _SEARCH_SECONDS)
    return next((str(path) for path in paths if _is_endless(path)), "")


def find_endless_file_below(root: Path) -> str:
    """Return the path of a pipe or device that a git which lists all files of a working tree would read.

    Within limits, because it looks into every directory: for the reason of a failure. Empty if none is found.
    """
    names = (*_WORKTREE_FILES, "HEAD")
    found = (path for path in _files_below(root, time.monotonic() + _SEARCH_SECONDS) if path.name in names)
    return next((str(path) for path in found if _is_endless(path)), "")


def _is_endless(path: Path) -> bool:
    try:
        about = path.stat(follow_symlinks=path.name not in _NOT_FOLLOWED)
    except (OSError, ValueError):
        return False
    is_device = stat.S_ISCHR(about.st_mode) and not os.path.samestat(about, Path(os.devnull).stat())
    return is_device or stat.S_ISFIFO(about.st_mode)


def _files_below(directory: Path, deadline: float) -> Iterator[Path]:
    for folder, _, files in os.walk(directory):
        if time.monotonic() >= deadline:
            return
        for name in files:
            yield Path(folder, name)
