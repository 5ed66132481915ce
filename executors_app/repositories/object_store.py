"""Object stores: a team's published objects, which workspaces borrow read-only, and their git-lfs contents."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from executors_app.machine.untrusted_files import Directory
from executors_app.repositories import bare, transfer
from executors_app.repositories.git import COPY, LOOKUP, Git, GitFailed
from executors_app.repositories.team import TeamRepository
from executors_app.repositories.workspace_refs import check_workspace_id
from executors_app.wire.errors import RepositoryUnusable
from executors_app.wire.exhaustion import raise_if_exhausted

logger = logging.getLogger(__name__)

_POINTER: Final = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n(?:[^\n]+\n)*?oid sha256:([0-9a-f]{64})\nsize ([0-9]{1,15})\n"
)
_POINTER_SIZES: Final = range(100, 1024)
_BATCH: Final = 20_000
"""Objects that are looked at in one call."""
LFS_LIMIT: Final = 16 << 30
"""Largest git-lfs file that is copied, in bytes."""
_KEPT_FREE: Final = 0.05
"""Share of the disk that copies of git-lfs files leave free."""
_SCANNED: Final = "scanned"
_MISSING: Final = "missing"

MAX_PACKS: Final = 24
"""With more packs than this, packs are merged."""


def needs_lfs_update(store: Path, repository: Directory) -> bool:
    """Whether ``copy_lfs_objects`` has work to do although no ref has moved."""
    if not _is_used(repository):
        return False
    return not (store / "lfs" / _SCANNED).exists() or any(_has_object(repository, oid) for oid in _read_missing(store))


def copy_lfs_objects(git: Git, store: Path, repository: Directory) -> None:
    """Copy the git-lfs contents that the store's commits point to; raises OSError, GitFailed.

    Contents that the repository lacks are listed in a file, and copied once they are there.
    """
    if not _is_used(repository):
        return
    folder = store / "lfs"
    folder.mkdir(mode=0o755, exist_ok=True)
    packs = {path.name for path in (store / "objects" / "pack").glob("*.idx")}
    scanned = folder / _SCANNED
    new = packs
    if scanned.exists():
        new = packs - set(scanned.read_text().split())
    found = _read_missing(store) | set(_pointers(git, store, new))
    _write_list(folder / _MISSING, (oid for oid in sorted(found) if not _copy_object(store, repository, oid)))
    _write_list(scanned, sorted(packs))  # last: after a crash, the same packs are scanned again


def _is_used(repository: Directory) -> bool:
    found = repository.find("lfs/objects")
    return found is not None and found.is_directory


def _read_missing(store: Path) -> set[str]:
    try:
        return set((store / "lfs" / _MISSING).read_text().split())
    except FileNotFoundError:
        return set()


def _pointers(git: Git, store: Path, packs: Iterable[str]) -> Iterator[str]:
    """Yield the git-lfs ids that objects of these packs point to."""
    for pack in packs:
        with tempfile.TemporaryFile() as listed, (store / "objects" / "pack" / pack).open("rb") as index:
            git.write(listed, "show-index", stdin=index)
            listed.seek(0)
            while lines := list(itertools.islice(listed, _BATCH)):
                names = [line.decode().split(" ")[1].strip() for line in lines]
                yield from _pointers_among(git, names)


def _pointers_among(git: Git, names: Sequence[str]) -> Iterator[str]:
    """Yield the git-lfs ids that these objects point to; at most ``_BATCH`` objects."""
    about = "--batch-check=%(objectname) %(objecttype) %(objectsize)"
    listed = git.run("cat-file", about, stdin=bare.join_lines(names), bounds=LOOKUP).decode()
    small = []
    for name, kind, size in (line.split(" ") for line in listed.splitlines()):
        if kind == "blob" and int(size) in _POINTER_SIZES:
            small.append(name)
    if small:
        texts = git.run("cat-file", "--batch", stdin=bare.join_lines(small), bounds=LOOKUP)
    else:
        texts = b""
    yield from (found[1].decode() for found in _POINTER.finditer(texts))


def _object_path(oid: str) -> str:
    return f"lfs/objects/{oid[:2]}/{oid[2:4]}/{oid}"


def _has_object(repository: Directory, oid: str) -> bool:
    found = repository.find(_object_path(oid))
    return found is not None and found.is_file


def _copy_object(store: Path, repository: Directory, oid: str) -> bool:
    """Copy the contents and return whether the store has them now."""
    target = store / _object_path(oid)
    if target.exists():
        return True
    try:
        source = repository.open_file(_object_path(oid))
    except OSError as error:
        raise_if_exhausted(error)
        return False
    with os.fdopen(source, "rb") as file, tempfile.NamedTemporaryFile(dir=store / "lfs", prefix="tmp_") as draft:
        size = os.fstat(file.fileno()).st_size
        if why := _reason_against(size, store):
            logger.warning("git-lfs object %s of %s is not provided: %s", oid, repository.path, why)
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        for folder in list(target.parents)[:4]:
            folder.chmod(0o755)
        _copy_beginning(file, draft, size)
        draft.seek(0)
        if hashlib.file_digest(draft, "sha256").hexdigest() != oid:
            return False
        os.fchmod(draft.fileno(), 0o444)
        os.fsync(draft.fileno())
        os.link(draft.name, target)  # only now, so that the name guarantees the contents
    return True


def _reason_against(size: int, store: Path) -> str:
    """Return why a file of this size must not be copied into the store; empty if it may.

    Whoever can write the repository can make a file of any size there, which takes no room until it is copied.
    """
    if size > LFS_LIMIT:
        return f"It has more than {LFS_LIMIT} bytes."
    disk = shutil.disk_usage(store)
    if disk.free - size < disk.total * _KEPT_FREE:
        return "The disk would be nearly full."
    return ""


def _copy_beginning(source: IO[bytes], target: IO[bytes], size: int) -> None:
    """Copy ``size`` bytes, or fewer if there are no more: the file may grow meanwhile."""
    while size > 0 and (part := source.read(min(size, 1 << 20))):
        target.write(part)
        size -= len(part)


def _write_list(path: Path, words: Iterable[str]) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text("".join(f"{word}\n" for word in words))
    draft.chmod(0o644)
    draft.rename(path)


class ObjectStore:
    """The object store of one repository; see ``of``."""

    def __init__(self, path: Path, repository: TeamRepository):
        self.path = path
        self.repository = repository

    @classmethod
    def of(cls, root: Path, repository: TeamRepository, store_id: str = "") -> ObjectStore:
        """Return a repository's store below the data directory ``root``; the first update creates it.

        ``store_id`` names it; empty: its path does, for a repository that release 1.0.0 added. No other repository may
        get that name: what a team has published stays in its store, and another team may be given the path later.
        Raises RepositoryUnusable for an invalid id.
        """
        # The object format is part of the name: a repository recreated in another format cannot use the old objects.
        if store_id:
            name = f"{check_workspace_id(store_id)}-{repository.object_format}"
        else:
            named = os.fsencode(repository.common) + b"\0" + repository.object_format.encode()
            name = hashlib.sha256(named).hexdigest()[:32]
        return cls(root / "repositories" / name, repository)

    @property
    def git(self) -> Git:
        """Git for the store."""
        return Git(self.path, account=str(self.repository.common))

    @property
    def objects(self) -> Path:
        """The directory that others borrow from."""
        return self.path / "objects"

    def refs(self) -> dict[str, str]:
        """Return the published refs as of the last update, and the commits they name; reads one file."""
        try:
            text = (self.path / "packed-refs").read_text()
        except FileNotFoundError:
            return {}
        return {name: commit for commit, _, name in (line.partition(" ") for line in text.splitlines())}

    def update(self) -> None:
        """Copy what the repository has published since the last update; raises RepositoryUnusable, GitFailed.

        Cheap if that is nothing. Updates of all processes run one at a time; the next one completes a killed one.
        """
        if self._is_current(self.repository.published_refs()):
            return
        bare.make_bare_repository(self.path, self.repository.object_format, mode=0o755, shared="0644")
        # The lock file is beside the store, not in it: agents can read the store, and a reader could lock a file.
        with bare.repository_lock(self.path.with_name(f"{self.path.name}.lock"), seconds=COPY.seconds) as held:
            published = self.repository.published_refs()
            if not self._is_current(published):
                self._bring(published, held)
            self._provide_lfs()

    def _is_current(self, published: Mapping[str, str]) -> bool:
        return (
            self.path.is_dir()
            and published == self.refs()
            and not needs_lfs_update(self.path, self.repository.directory)
        )

    def _bring(self, published: Mapping[str, str], held: int) -> None:
        _remove_drafts(self.objects)
        before, source = self.refs(), self.repository.git
        there = bare.object_types(source, {*published.values(), *before.values()})
        # A ref to a missing object is damage of the team's repository; the other refs are still usable.
        wanted = {name: commit for name, commit in published.items() if commit in there}
        new = set(wanted.values()) - set(before.values())
        if new:
            known = [commit for commit in set(before.values()) if there.get(commit) in {"commit", "tag"}]
            try:
                transfer.copy_objects(source, self.git, new, known, hold=(held,))
                # Objects are hashed again on arrival, so an object that was stored under a false name is missing now.
                walk = bare.revision_input(new, set(before.values()))
                self.git.run("rev-list", "--objects", "--quiet", "--stdin", stdin=walk, bounds=COPY, hold=(held,))
            except GitFailed as error:
                raise RepositoryUnusable(
                    f"The objects of {self.repository.path} cannot be read ({error.message}). "
                    "Run git fsck in it to see what is wrong."
                ) from error
        self._write_refs(wanted)
        if len(list((self.objects / "pack").glob("*.pack"))) > MAX_PACKS:
            # Merging by size keeps every object, reachable or not.
            self.git.run("repack", "--geometric=2", "-d", "-n", "-q", bounds=COPY, hold=(held,))

    def _write_refs(self, wanted: Mapping[str, str]) -> None:
        """Write the refs, after the objects: a ref here guarantees that everything it reaches is here."""
        draft = self.path / "packed-refs.draft"
        with draft.open("w") as file:
            file.writelines(f"{commit} {name}\n" for name, commit in sorted(wanted.items()))
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o644)
        draft.rename(self.path / "packed-refs")

    def _provide_lfs(self) -> None:
        copy_lfs_objects(self.git, self.path, self.repository.directory)


def _remove_drafts(objects: Path) -> None:
    """Remove half-written files of killed gits; the caller holds the store's lock."""
    for place in (objects / "pack", objects):
        for draft in place.glob("tmp_*"):
            draft.unlink(missing_ok=True)
