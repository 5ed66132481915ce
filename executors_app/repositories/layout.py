"""Where a team's repository keeps what, found by reading plain files, and whether git may be let near it.

git would find out itself, but it reads the repository's configuration on the way.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from executors_app import plain_files
from executors_app.errors import RepositoryUnusable

POINTER_LIMIT: Final = 8192
_REFS_LIMIT: Final = 200_000
"""Entries below ``refs``; packed refs are not counted."""
_PACKS_LIMIT: Final = 50_000


def common_directory(path: Path) -> Path:
    """The git directory that a repository's worktrees share; RepositoryUnusable.

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
    return common


def worktree_directory(path: Path, common: Path) -> Path:
    """The git directory of the worktree at ``path``, which has its HEAD; ``common`` if it is not a linked one."""
    pointer = path / ".git"
    if pointer.is_symlink() or not pointer.is_file():
        return common
    return _target(path, pointer, "gitdir:")


def check(common: Path) -> None:
    """Raise RepositoryUnusable, with what to do, for a repository that cannot be used safely, or not whole."""
    for name in ("objects", "objects/info", "objects/pack", "refs", "packed-refs"):
        if (common / name).is_symlink():
            raise RepositoryUnusable(
                f"{common / name} is a symbolic link. Put what it leads to in its place, then try again."
            )
    if (common / "reftable").exists():
        raise RepositoryUnusable(
            f"{common} keeps its refs as a reftable, which is not supported. Clone it with --ref-format=files."
        )
    if (common / "shallow").exists():
        raise RepositoryUnusable(f"{common} is a shallow clone. Run git fetch --unshallow in it, then try again.")
    borrowed = plain_files.read_file(common / "objects" / "info" / "alternates", POINTER_LIMIT) or b""
    if any(line.strip() and not line.startswith(b"#") for line in borrowed.splitlines()):
        # Where the file leads is anybody's word who could once write the objects, and the whole of that place
        # would become readable to agents.
        raise RepositoryUnusable(
            f"{common} borrows objects from another repository. Run git repack -a -d in it and remove "
            f"{common / 'objects' / 'info' / 'alternates'}, then try again."
        )
    _check_objects(common / "objects")
    _check_refs(common / "refs")


def _check_objects(objects: Path) -> None:
    for folder, limit in ((objects, 1000), (objects / "pack", _PACKS_LIMIT)):
        for entry in plain_files.entries(folder, limit):
            if entry.is_symlink():
                raise RepositoryUnusable(f"{entry.path} is a symbolic link. Put what it leads to in its place.")
            if entry.name.endswith(".promisor"):
                raise RepositoryUnusable(
                    f"{objects.parent} is a partial clone, which lacks objects. Clone the repository without --filter."
                )


def _check_refs(refs: Path) -> None:
    """No symbolic link below: git would read, and write, wherever one leads."""
    folders, count = [refs], 0
    while folders:
        for entry in plain_files.entries(folders.pop(), _REFS_LIMIT):
            count += 1
            if count >= _REFS_LIMIT:
                raise RepositoryUnusable(f"{refs} holds too many files. Run git pack-refs --all in the repository.")
            if entry.is_symlink():
                raise RepositoryUnusable(f"{entry.path} is a symbolic link among the refs. Remove it, then try again.")
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))


def _pointed(path: Path, pointer: Path) -> Path:
    """Where a ``.git`` file leads, and from there to what all worktrees share."""
    folder = _target(path, pointer, "gitdir:")
    shared = folder / "commondir"
    return _target(folder, shared, "").resolve() if os.path.lexists(shared) else folder.resolve()


def _target(base: Path, pointer: Path, prefix: str) -> Path:
    said = os.fsdecode(plain_files.read_file(pointer, POINTER_LIMIT) or b"").removesuffix("\n")
    place = said.removeprefix(prefix).removeprefix(" ")
    if not said.startswith(prefix) or not place or "\0" in place or len(said) >= POINTER_LIMIT - 1:
        raise RepositoryUnusable(f"{base} is not a usable git repository: {pointer} does not say where it is.")
    return base / place
