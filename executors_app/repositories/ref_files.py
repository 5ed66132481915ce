"""Read and move the refs of a team's repository as files, below an opened directory and without following links.

git would follow whatever stands in place of ``packed-refs`` or of a directory of refs at that moment: its error would
quote a line of that file, and its update would write there. Refs are therefore read here, and git gets a copy of
what was read. They are moved as git moves them: a lock file beside each ref, a check of its present value, a rename.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from executors_app.machine import untrusted_files
from executors_app.machine.untrusted_files import Directory
from executors_app.repositories.bare import OBJECT_ID
from executors_app.repositories.git import GitFailed
from executors_app.repositories.git_errors import Cause
from executors_app.wire.errors import RepositoryUnusable
from executors_app.wire.exhaustion import raise_if_exhausted

PACKED_LIMIT: Final = 64 << 20
"""Largest ``packed-refs``, in bytes."""
FILES_LIMIT: Final = 200_000
"""Maximum number of entries below ``refs``; packed refs do not count."""
_DEPTH_LIMIT: Final = 40
_POINTER_LIMIT: Final = 4096
_SYMBOLIC: Final = "ref: "
_NAME_LIMIT: Final = 1024
_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(?:/|$)|[./]$")
_LOCK_SECONDS: Final = 1.0
_LOCKED_AT_ONCE: Final = 50
"""Groups of refs that are locked at once; a lock takes a descriptor for each part of its path."""
_LOCK_PAUSE: Final = 0.02
STALE_SECONDS: Final = 300.0
"""Seconds after which a ref's lock file must be a killed git's: git holds it only for one rename."""
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Changes = Mapping[str, tuple[str, str]]
"""Refs, each with the commit that it names now and the one that it is to name; empty: none."""


@dataclass(frozen=True, slots=True)
class FileModes:
    """Modes of what is made in a repository, according to git's ``core.sharedRepository``; None: as the umask says."""

    file: int | None = None
    directory: int | None = None

    @classmethod
    def of(cls, shared: str) -> FileModes:
        """Return the modes for a value of ``core.sharedRepository``; an unknown value counts as none."""
        shared = shared.lower()
        if shared in {"group", "true", "1"}:
            return cls(0o660, 0o2770)
        if shared in {"all", "world", "everybody", "2"}:
            return cls(0o664, 0o2775)
        if re.fullmatch(r"0[67][0-7]{2}", shared):
            file = int(shared, 8) & 0o666
            return cls(file, file | (file & 0o444) >> 2 | 0o2000)
        return cls()

    def apply(self, descriptor: int, *, writable: bool = True) -> None:
        """Give an opened file its mode."""
        if self.file is not None:
            mode = self.file
            if not writable:
                mode &= 0o444
            os.fchmod(descriptor, mode)


def is_valid_name(name: str) -> bool:
    """Whether git accepts the name of a ref."""
    return name.startswith("refs/") and len(name) <= _NAME_LIMIT and _FORBIDDEN.search(name) is None


def read_refs(repository: Directory) -> dict[str, str]:
    """Return all refs of a repository: the commit that each names, or ``ref: `` and the ref that it stands for.

    Names and values that git would not accept are left out. Raises RepositoryUnusable.
    """
    # Loose refs first: one that is packed meanwhile is then found there, in the file that was written before.
    loose = dict(_read_loose(repository))
    return {**_read_packed(repository), **loose}


def _read_loose(repository: Directory) -> Iterator[tuple[str, str]]:
    folders, count = ["refs"], 0
    while folders:
        folder = folders.pop()
        with suppress(FileNotFoundError, NotADirectoryError), repository.opened(folder) as opened:
            entries = untrusted_files.list_opened(opened, FILES_LIMIT)
            count += len(entries)
            if count >= FILES_LIMIT:
                raise RepositoryUnusable(
                    f"{repository.path / 'refs'} contains too many files. Run git pack-refs --all in the repository."
                )
            for entry in entries:
                name = f"{folder}/{entry.name}"
                if entry.is_link:
                    raise RepositoryUnusable(
                        f"{repository.path / name} is a symbolic link below refs. Remove it, then try again."
                    )
                if entry.is_directory and name.count("/") < _DEPTH_LIMIT:
                    folders.append(name)
                elif entry.is_file and is_valid_name(name) and (value := _read_value(opened, entry.name)):
                    yield name, value


def _read_value(folder: int, name: str) -> str:
    """Return the value of a ref's file; empty if there is none, or none that git would accept."""
    try:
        file = untrusted_files.open_regular_file(folder, name)
    except OSError as error:
        raise_if_exhausted(error)
        return ""
    try:
        text = os.read(file, _POINTER_LIMIT).decode("utf-8", "surrogateescape").strip()
    finally:
        os.close(file)
    if text.startswith(_SYMBOLIC):
        return text
    if OBJECT_ID.fullmatch(text):
        return text
    return ""


def _read_packed(repository: Directory) -> dict[str, str]:
    found = repository.find("packed-refs")
    if found is None:
        return {}
    text = repository.read("packed-refs", PACKED_LIMIT)
    if text is None:
        raise RepositoryUnusable(f"{repository.path / 'packed-refs'} is not a plain file. Remove it, then try again.")
    if len(text) == PACKED_LIMIT:
        raise RepositoryUnusable(f"{repository.path / 'packed-refs'} is too long.")
    refs = {}
    for line in text.decode("utf-8", "surrogateescape").split("\n"):
        commit, _, name = line.partition(" ")
        if OBJECT_ID.fullmatch(commit) and is_valid_name(name):
            refs[name] = commit
    return refs


def packed_refs_file(refs: Mapping[str, str]) -> bytes:
    """Return a ``packed-refs`` file of refs that name commits."""
    lines = [f"{commit} {name}\n" for name, commit in refs.items() if not commit.startswith(_SYMBOLIC)]
    return "".join(lines).encode("utf-8", "surrogateescape")


def is_symbolic(value: str) -> bool:
    """Whether the value of a ref is the name of another one."""
    return value.startswith(_SYMBOLIC)


def remove_stale_lock(repository: Directory, ref: str) -> None:
    """Remove the lock file that a killed git left behind, which would block the ref forever."""
    folder, _, name = ref.rpartition("/")
    with suppress(OSError), repository.opened(folder) as opened:
        lock = f"{name}.lock"
        if time.time() - os.stat(lock, dir_fd=opened, follow_symlinks=False).st_mtime > STALE_SECONDS:
            os.unlink(lock, dir_fd=opened)


def update_refs(repository: Directory, changes: Changes, modes: FileModes) -> None:
    """Move refs, all or none; follows no symbolic ref.

    Raises GitFailed if one of them no longer names its old commit, or is locked; RepositoryUnusable.
    """
    for error in update_ref_groups(repository, {"": changes}, modes).values():
        raise error


def update_ref_groups(repository: Directory, groups: Mapping[str, Changes], modes: FileModes) -> dict[str, GitFailed]:
    """Move groups of refs, those of each group all or none; return why some groups were not moved, by their names.

    However many refs are locked, it waits ``_LOCK_SECONDS`` for all of them together. Only one of several groups may
    remove refs, because that locks the packed refs. Raises RepositoryUnusable.
    """
    refused: dict[str, GitFailed] = {}
    until = time.monotonic() + _LOCK_SECONDS
    names = [name for name, changes in groups.items() if changes]
    for start in range(0, len(names), _LOCKED_AT_ONCE):
        with ExitStack() as locks:
            held = {}
            for name in names[start : start + _LOCKED_AT_ONCE]:
                try:
                    held[name] = locks.enter_context(_Group.locked(repository, groups[name], modes, until))
                except GitFailed as error:
                    refused[name] = error
            now: dict[str, str] = {}
            if held:
                now = read_refs(repository)
            for name, group in held.items():
                try:
                    now = group.move(repository, now)
                except GitFailed as error:
                    refused[name] = error
    return refused


@dataclass(slots=True)
class _Group:
    """Refs that move together, and their locks."""

    changes: Changes
    locks: Mapping[str, _Lock]
    packed: _Lock | None
    """The lock of the packed refs, if one of the refs is removed."""

    @classmethod
    @contextmanager
    def locked(cls, repository: Directory, changes: Changes, modes: FileModes, until: float) -> Iterator[_Group]:
        """Hold the locks of the refs. Raises GitFailed."""
        with ExitStack() as stack:
            locks = {ref: _acquire(repository, ref, modes, stack, until) for ref in sorted(changes)}
            removes = any(not after for _, after in changes.values())
            packed = None
            if removes:
                packed = _acquire(repository, "packed-refs", modes, stack, until)
            yield cls(changes, locks, packed)

    def move(self, repository: Directory, now: Mapping[str, str]) -> dict[str, str]:
        """Move the refs; ``now`` are all refs. Returns all refs as they are then. Raises GitFailed."""
        for ref, (before, after) in self.changes.items():
            if now.get(ref, "") != before:
                raise GitFailed(f"{ref} has moved meanwhile.", cause=Cause.MOVED)
            if after:
                _check_place(ref, now)
        removed = {ref for ref, (_, after) in self.changes.items() if not after}
        written = {ref: after for ref, (_, after) in self.changes.items() if after}
        try:
            # The packed refs first: a removed ref must not come back with the commit that is packed.
            if self.packed is not None:
                _write_packed(self.packed, _read_packed(repository), removed)
                for ref in removed:
                    self.locks[ref].remove()
            for ref, after in written.items():
                self.locks[ref].commit(f"{after}\n".encode())
        except OSError as error:
            raise GitFailed(f"A ref could not be written: {error.strerror}.", cause=Cause.UNKNOWN) from error
        return {**{ref: commit for ref, commit in now.items() if ref not in removed}, **written}


def _write_packed(lock: _Lock, packed: Mapping[str, str], removed: set[str]) -> None:
    if removed & set(packed):
        left = {ref: commit for ref, commit in sorted(packed.items()) if ref not in removed}
        lock.commit(packed_refs_file(left))


def _check_place(ref: str, refs: Mapping[str, str]) -> None:
    """Raise GitFailed if another ref's name is a directory of this one's, or the other way round."""
    parts = ref.split("/")
    above = {"/".join(parts[:length]) for length in range(2, len(parts))}
    other = next((name for name in refs if name in above or name.startswith(f"{ref}/")), "")
    if other:
        raise GitFailed(f"{ref} cannot be created because {other} exists.", cause=Cause.MOVED)


@dataclass(slots=True)
class _Lock:
    """The lock file of a ref, which becomes the ref.

    It stays opened, because its name may lead to something else by the time it is written: to a pipe, for example,
    which nobody reads.
    """

    folder: int
    name: str
    file: int
    modes: FileModes
    is_held: bool = True

    def commit(self, text: bytes) -> None:
        """Write the new contents and put them in place."""
        lock = f"{self.name}.lock"
        with os.fdopen(self.file, "wb", closefd=False) as writer:
            writer.write(text)
        self.modes.apply(self.file)
        os.fsync(self.file)
        if not os.path.samestat(os.fstat(self.file), os.stat(lock, dir_fd=self.folder, follow_symlinks=False)):
            raise OSError(errno.ESTALE, "its lock file was exchanged", lock)
        os.rename(lock, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        self.is_held = False

    def remove(self) -> None:
        """Remove the ref's own file; the lock stays until the end."""
        with suppress(FileNotFoundError):
            os.unlink(self.name, dir_fd=self.folder)

    def release(self) -> None:
        """Close the lock file, and remove it unless it became the ref: then the next one may be another process's."""
        os.close(self.file)
        if self.is_held:
            with suppress(OSError):
                os.unlink(f"{self.name}.lock", dir_fd=self.folder)


def _acquire(repository: Directory, ref: str, modes: FileModes, until_exit: ExitStack, until: float) -> _Lock:
    """Create the lock file of a ref; it is released when ``until_exit`` ends. Raises GitFailed.

    ``until`` is when to give up, as ``time.monotonic`` counts.
    """
    folder, _, name = ref.rpartition("/")
    try:
        opened = until_exit.enter_context(repository.opened(folder, create=modes.directory or 0o777))
        file = _create_lock(opened, name, ref, until)
    except OSError as error:
        raise GitFailed(f"{ref} could not be locked: {error.strerror}.", cause=Cause.LOCKED) from error
    lock = _Lock(opened, name, file, modes)
    until_exit.callback(lock.release)
    return lock


def _create_lock(folder: int, name: str, ref: str, until: float) -> int:
    """Create a lock file as soon as nobody holds it, and return it, opened for writing. Raises OSError, GitFailed."""
    while True:
        try:
            return os.open(f"{name}.lock", _WRITE, 0o666, dir_fd=folder)
        except FileExistsError:
            if time.monotonic() > until:
                raise GitFailed(
                    f"{ref} is locked. If no git runs in the repository, remove its lock file.", cause=Cause.LOCKED
                ) from None
            time.sleep(_LOCK_PAUSE)
