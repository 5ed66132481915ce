"""Pipes and devices in the place of files that git reads: it would wait for one until it is killed.

An agent can put one there. What is found beforehand costs only the repository that it is in.
"""

from __future__ import annotations

import itertools
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
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
_MAX_PIPES: Final = 100


def find_endless_file(root: Path, *, with_refs: bool = False) -> str:
    """Return the path of a pipe or device that every git in a working tree would read; empty if there is none.

    ``with_refs`` examines the refs, too, which a repository that many share can have in any number.
    """
    return _first_endless([root / name for name in _WORKTREE_FILES], root, with_refs=with_refs)


def find_unanswered_file(root: Path) -> str:
    """Return the same without the pipes that ``WorkspaceGit`` answers for git (``find_pipes``)."""
    pipes = find_pipes(root)
    return _first_endless([root / name for name in _WORKTREE_FILES if root / name not in pipes], root, with_refs=False)


def find_endless_git_file(directory: Path) -> str:
    """Return such a file in a git directory without a working tree; empty if there is none."""
    refs = _files_below(directory / "refs", time.monotonic() + _SEARCH_SECONDS)
    paths = itertools.chain((directory / name for name in _GIT_FILES), refs)
    return next((str(path) for path in paths if _is_endless(path)), "")


def find_pipes(root: Path) -> list[Path]:
    """Return the pipes in the place of files of the working tree that every git there reads."""
    return [root / name for name in _WORKTREE_FILES if _is_endless(root / name) and (root / name).is_fifo()]


def find_pipes_below(root: Path) -> list[Path]:
    """Return such pipes in any directory, within limits; for a git that did not come back."""
    found = (path for path in _files_below(root, time.monotonic() + _SEARCH_SECONDS) if path.name in _WORKTREE_FILES)
    return list(itertools.islice((path for path in found if _is_endless(path) and path.is_fifo()), _MAX_PIPES))


def find_pipes_beside(root: Path, paths: Iterable[bytes]) -> list[Path]:
    """Return such pipes in the directories of these files, from the root of the working tree on."""
    folders: set[PurePath] = set()
    for path in paths:
        folders.update(PurePath(os.fsdecode(path)).parents)
    pipes = []
    for folder in sorted(folders):
        files = [root / folder / name for name in _WORKTREE_FILES]
        pipes += [file for file in files if _is_endless(file) and file.is_fifo()]
    return pipes


def _first_endless(paths: list[Path], root: Path, *, with_refs: bool) -> str:
    directories: list[Path] = []
    if own := git_directory.git_directory_of(root):
        directories = [own, common_directory_of(own)]
    for directory in dict.fromkeys(directories):
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
