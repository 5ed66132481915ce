"""Read files that an agent or a member may have written: size limits, regular files only, no blocking reads."""

from __future__ import annotations

import errno
import os
import stat
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from executors_app.wire.exhaustion import raise_if_exhausted, suppress_absence

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_DIRECTORY: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
_CHUNK: Final = 1 << 20


def is_plain_directory(path: Path) -> bool:
    """Whether ``path`` is a directory and not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def read_regular_file(path: Path, limit: int, *, follow: bool = True) -> bytes | None:
    """Return the first ``limit`` bytes of a regular file; None if there is no readable one."""
    # O_NONBLOCK, because opening a pipe without a writer would wait forever.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    if not follow:
        flags |= os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as error:
        raise_if_exhausted(error)
        return None
    with os.fdopen(descriptor, "rb") as file:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return file.read(limit)
        return None


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a directory, as it was when it was read."""

    name: str
    is_directory: bool
    is_file: bool
    is_link: bool


class Directory:
    """An opened directory, below which files are found without following links.

    Everything is reached from its descriptor, one component at a time. Whoever exchanges the path, or a directory
    below it, for a link while we read gains nothing: we stay where we were, or find nothing.
    """

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        """Open ``path``, unless it is opened already. Raises OSError, also if it is a link."""
        self.path = path
        if descriptor is None:
            descriptor = os.open(path, _DIRECTORY)
        self.descriptor = descriptor
        weakref.finalize(self, os.close, self.descriptor)

    def real_path(self) -> Path:
        """Return where the opened directory is now, without links. Raises OSError."""
        return Path(f"/proc/self/fd/{self.descriptor}").readlink()

    def directory(self, relative: str) -> Directory:
        """Open a directory below for longer; raises OSError, also if a link is on the way."""
        with self.opened(relative) as opened:
            return Directory(self.path / relative, os.dup(opened))

    @contextmanager
    def opened(self, relative: str, *, create: int = 0) -> Iterator[int]:
        """Yield the descriptor of a directory below.

        ``create`` is the mode of directories that are made on the way; 0: none are made. Raises OSError, also if a
        link is on the way.
        """
        with ExitStack() as stack:
            here = os.dup(self.descriptor)
            stack.callback(os.close, here)
            for part in _parts(relative):
                if create:
                    _make_directory(here, part, create)
                here = os.open(part, _DIRECTORY, dir_fd=here)
                stack.callback(os.close, here)
            yield here

    def open_file(self, relative: str) -> int:
        """Open a regular file below for reading; the caller closes it. Raises OSError, also for anything else."""
        *folders, name = _parts(relative)
        with self.opened("/".join(folders)) as folder:
            return open_regular_file(folder, name)

    def read(self, relative: str, limit: int) -> bytes | None:
        """Return the first ``limit`` bytes of a regular file below; None if there is no such file."""
        try:
            file = self.open_file(relative)
        except OSError as error:
            raise_if_exhausted(error)
            return None
        try:
            return _read(file, limit)
        finally:
            os.close(file)

    def read_link(self, relative: str) -> str:
        """Return where a link below leads; empty if there is none."""
        *folders, name = _parts(relative)
        try:
            with self.opened("/".join(folders)) as folder:
                return os.readlink(name, dir_fd=folder)
        except OSError as error:
            raise_if_exhausted(error)
            return ""

    def find(self, relative: str) -> Entry | None:
        """Return what is at a path below, which may be a link; None if there is nothing."""
        *folders, name = _parts(relative)
        try:
            with self.opened("/".join(folders)) as folder:
                mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        except OSError as error:
            raise_if_exhausted(error)
            return None
        return Entry(name, stat.S_ISDIR(mode), stat.S_ISREG(mode), stat.S_ISLNK(mode))

    def entries(self, relative: str, limit: int) -> list[Entry]:
        """Return at most ``limit`` entries of a directory below; none if it is not one."""
        try:
            with self.opened(relative) as folder:
                return list_opened(folder, limit)
        except OSError as error:
            raise_if_exhausted(error)
            return []


def open_regular_file(folder: int, name: str) -> int:
    """Open a regular file in an opened directory; raises OSError for a link, and for anything else."""
    file = os.open(name, _READ, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a regular file", name)
    return file


def list_opened(folder: int, limit: int) -> list[Entry]:
    """Return at most ``limit`` entries of an opened directory. Raises OSError."""
    listed: list[Entry] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if len(listed) == limit:
                break
            is_directory = entry.is_dir(follow_symlinks=False)
            is_file = entry.is_file(follow_symlinks=False)
            listed.append(Entry(entry.name, is_directory, is_file, entry.is_symlink()))
    return listed


def _parts(relative: str) -> tuple[str, ...]:
    parts = PurePosixPath(relative).parts
    if relative.startswith("/") or ".." in parts or "\0" in relative:
        raise OSError(errno.EINVAL, "not a path below a directory", relative)
    return parts


def _make_directory(folder: int, name: str, mode: int) -> None:
    """Make a directory unless it exists. The umask applies, except to a mode with the set-group-ID bit."""
    try:
        os.mkdir(name, mode & 0o777, dir_fd=folder)
    except FileExistsError:
        return
    if mode & stat.S_ISGID:
        # Opened without following links, like every directory here: the name may have been exchanged already.
        made = os.open(name, _DIRECTORY, dir_fd=folder)
        try:
            os.fchmod(made, mode)
        finally:
            os.close(made)


def read_file_below(root: Path, relative: str, *, limit: int = _CHUNK) -> bytes | None:
    """Return the first ``limit`` bytes of a regular file below ``root``; None if there is none, or a link leads to it.

    ``root`` itself must be out of the agent's reach.
    """
    parts = PurePosixPath(relative).parts
    with ExitStack() as opened, suppress_absence():
        here = os.open(root, _DIRECTORY)
        opened.callback(os.close, here)
        for part in parts[:-1]:
            here = os.open(part, _DIRECTORY, dir_fd=here)
            opened.callback(os.close, here)
        file = os.open(parts[-1], _READ, dir_fd=here)
        opened.callback(os.close, file)
        if stat.S_ISREG(os.fstat(file).st_mode):
            return _read(file, limit)
    return None


def _read(file: int, limit: int) -> bytes:
    parts, size = [], 0
    while size < limit and (part := os.read(file, min(_CHUNK, limit - size))):
        parts.append(part)
        size += len(part)
    return b"".join(parts)
