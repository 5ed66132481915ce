"""The layout of a team's repository, checked and read without git.

Where its directories are, what makes it unusable, and what its worktrees have checked out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from django.conf import settings

from executors_app.machine import untrusted_files
from executors_app.machine.git import git_directory
from executors_app.machine.git.git_directory import POINTER_LIMIT, Head
from executors_app.machine.untrusted_files import Directory
from executors_app.repositories import ref_files
from executors_app.wire.errors import RepositoryUnusable

PACKS_LIMIT: Final = 50_000

_WORKTREES: Final = 10_000
_IN_USE: Final = ("HEAD", "rebase-merge/head-name", "rebase-apply/head-name")
"""During a rebase HEAD names no branch; git keeps the branch's name in these files."""


def common_directory(path: Path) -> Path:
    """Return the git directory that a repository's worktrees share; raises RepositoryUnusable.

    ``path`` is a repository, a bare one, or a worktree.
    """
    if not path.is_dir():
        raise RepositoryUnusable(f"The repository {path} does not exist.")
    pointer = path / ".git"
    if pointer.is_symlink() or pointer.is_dir():
        common = pointer.resolve()
    elif pointer.exists():
        common = _pointed(path, pointer)
    else:
        common = path.resolve()
    for name in ("objects", "refs", "HEAD"):
        if not os.path.lexists(common / name):
            raise RepositoryUnusable(f"{path} is not a usable git repository: {common} has no {name}.")
    if os.path.lexists(common / "commondir"):
        raise RepositoryUnusable(
            f"{path} is not a usable git repository: {common / 'commondir'} leads to another one. Remove that file."
        )
    _check_place(path.resolve(), common)
    return common


def _check_place(path: Path, common: Path) -> None:
    """Raise RepositoryUnusable if a repository is somewhere else, where its owner could not have put it.

    Whoever may write the repository can let its ``.git`` lead to an archive of another team, for example.
    """
    if common in (path, path / ".git"):
        return
    data = Path(settings.KANDEV_DATA_DIR).resolve()
    if common.is_relative_to(data):
        raise RepositoryUnusable(f"{path} is not a usable git repository: its .git leads into Kandev's own data.")
    # The group counts as well: people of several teams may write repositories that all belong to one user.
    ours, theirs = path.stat(), common.stat()
    if (ours.st_uid, ours.st_gid) != (theirs.st_uid, theirs.st_gid):
        raise RepositoryUnusable(
            f"{path} is not a usable git repository: its .git leads to {common}, which belongs to another user or "
            "group. Add that repository instead."
        )


def open_directory(common: Path) -> Directory:
    """Open a git directory that ``common_directory`` has checked. Raises OSError, RepositoryUnusable."""
    directory = Directory(common)
    # A directory above it may have been exchanged for a link since: then another one was checked than we opened.
    if directory.real_path() != common:
        raise RepositoryUnusable(f"{common} was moved or exchanged while it was opened. Try again.")
    return directory


def worktree_directory(path: Path, common: Path) -> Path:
    """Return the git directory of the worktree at ``path``, which has its HEAD; ``common`` for the main one."""
    pointer = path / ".git"
    if pointer.is_symlink() or not pointer.is_file():
        return common
    return _target(path, pointer, git_directory.GITDIR_PREFIX)


def check_repository(repository: Directory) -> None:
    """Raise RepositoryUnusable, with what to do, for a repository that is unsafe or incomplete."""
    common = repository.path
    for name in ("objects", "objects/info", "objects/pack", "refs", "packed-refs"):
        found = repository.find(name)
        if found is not None and found.is_link:
            raise RepositoryUnusable(
                f"{common / name} is a symbolic link. Replace it with what it points to, then try again."
            )
    if repository.find("reftable") is not None:
        raise RepositoryUnusable(
            f"{common} stores its refs as a reftable, which is not supported. Clone it with --ref-format=files."
        )
    if repository.find("shallow") is not None:
        raise RepositoryUnusable(f"{common} is a shallow clone. Run git fetch --unshallow in it, then try again.")
    # The facade has no alternates, so git would miss these objects. They are not fetched from there: anyone who could
    # ever write the objects may have chosen that path, and agents could then read everything in it.
    borrowed = repository.read("objects/info/alternates", POINTER_LIMIT) or b""
    if any(line.strip() and not line.startswith(b"#") for line in borrowed.splitlines()):
        raise RepositoryUnusable(
            f"{common} borrows objects from another repository. Run git repack -a -d in it and remove "
            f"{common / 'objects' / 'info' / 'alternates'}, then try again."
        )
    _check_objects(repository)
    ref_files.read_refs(repository)


def _check_objects(repository: Directory) -> None:
    for folder, limit in (("objects", 1000), ("objects/pack", PACKS_LIMIT)):
        for entry in repository.entries(folder, limit):
            if entry.is_link:
                raise RepositoryUnusable(
                    f"{repository.path / folder / entry.name} is a symbolic link. Replace it with what it points to."
                )
            if entry.name.endswith(".promisor"):
                raise RepositoryUnusable(
                    f"{repository.path} is a partial clone, which lacks objects. Clone the repository without --filter."
                )


def _pointed(path: Path, pointer: Path) -> Path:
    """Resolve a ``.git`` file to the directory that all worktrees share."""
    folder = _target(path, pointer, git_directory.GITDIR_PREFIX)
    shared = folder / "commondir"
    if os.path.lexists(shared):
        return _target(folder, shared, "").resolve()
    return folder.resolve()


def _target(base: Path, pointer: Path, prefix: str) -> Path:
    try:
        text = untrusted_files.read_regular_file(pointer, POINTER_LIMIT, follow=False)
        return git_directory.parse_pointer(text, base, prefix)
    except git_directory.InvalidPointer as error:
        raise RepositoryUnusable(f"{base} is not a usable git repository: {pointer}: {error}.") from error


def checked_out_branches(repository: Directory, *, with_main: bool = True) -> set[str]:
    """Return the refs of all branches that are checked out in any worktree of the repository.

    ``with_main`` is false for a bare repository, whose own HEAD names a branch that is checked out nowhere.
    """
    folders = []
    if with_main:
        folders.append("")
    folders += [f"worktrees/{entry.name}/" for entry in repository.entries("worktrees", _WORKTREES)]
    refs: set[str] = set()
    for folder in folders:
        refs |= {read_worktree_head(repository, f"{folder}{name}").ref for name in _IN_USE}
    return refs - {""}


def read_worktree_head(repository: Directory, name: str = "HEAD") -> Head:
    """Return what a HEAD names, without following a link: old versions of git made it one, to the ref's name."""
    link = repository.read_link(name)
    if link:
        return git_directory.parse_head(os.fsencode(link))
    return git_directory.parse_head(repository.read(name, POINTER_LIMIT))
