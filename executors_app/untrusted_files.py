"""Read files that an agent or a member may have written: size limits, regular files only, no blocking reads."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path, PurePosixPath
from typing import Final

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
    try:
        # O_NONBLOCK, because opening a pipe without a writer would wait forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))
    except (OSError, ValueError):
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None


def list_entries(folder: Path, limit: int) -> Iterator[os.DirEntry[str]]:
    """Yield at most ``limit`` entries of a directory; nothing if it is not one."""
    try:
        with os.scandir(folder) as found:
            for number, entry in enumerate(found):
                if number == limit:
                    return
                yield entry
    except OSError:
        return


def read_file_below(root: Path, relative: str, *, limit: int = _CHUNK) -> bytes | None:
    """Return the first ``limit`` bytes of a regular file below ``root``; None if there is none, or a link leads to it.

    ``root`` itself must be out of the agent's reach.
    """
    parts = PurePosixPath(relative).parts
    with ExitStack() as opened, suppress(OSError):
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


def copy_directory(source: Path, into: Path, *, leave_out: Collection[str] = ()) -> None:
    """Copy a directory: files with modes and times, links as links, and nothing of any other kind.

    ``leave_out`` are names at the top level. Raises OSError, also if ``source`` is a link.
    """
    with ExitStack() as opened:
        here = os.open(source, _DIRECTORY)
        opened.callback(os.close, here)
        into.mkdir(parents=True, mode=0o700)
        there = os.open(into, _DIRECTORY)
        opened.callback(os.close, there)
        _copy(here, there, frozenset(leave_out))


def _copy(here: int, there: int, leave_out: Collection[str]) -> None:
    with os.scandir(here) as entries:
        names = [entry.name for entry in entries if entry.name not in leave_out]
    for name in names:
        about = os.stat(name, dir_fd=here, follow_symlinks=False)
        if stat.S_ISLNK(about.st_mode):
            os.symlink(os.readlink(name, dir_fd=here), name, dir_fd=there)
        elif stat.S_ISDIR(about.st_mode):
            _copy_directory(here, there, name)
        elif stat.S_ISREG(about.st_mode):
            _copy_file(here, there, name)


def _copy_directory(here: int, there: int, name: str) -> None:
    with ExitStack() as opened:
        source = os.open(name, _DIRECTORY, dir_fd=here)
        opened.callback(os.close, source)
        os.mkdir(name, 0o700, dir_fd=there)
        target = os.open(name, _DIRECTORY, dir_fd=there)
        opened.callback(os.close, target)
        _copy(source, target, ())
        os.fchmod(target, stat.S_IMODE(os.fstat(source).st_mode) & 0o777 | 0o700)


def _copy_file(here: int, there: int, name: str) -> None:
    with ExitStack() as opened:
        source = os.open(name, _READ, dir_fd=here)
        opened.callback(os.close, source)
        about = os.fstat(source)
        if not stat.S_ISREG(about.st_mode):
            return
        # Without set-user-id bits: the copy belongs to whoever copies.
        mode = stat.S_IMODE(about.st_mode) & 0o777
        target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=there)
        opened.callback(os.close, target)
        _copy_data(source, target, about.st_size)
        os.fchmod(target, mode)
        # The time is copied, too: by it git sees that a file is unchanged.
        os.utime(target, ns=(about.st_atime_ns, about.st_mtime_ns))


def _copy_data(source: int, target: int, size: int) -> None:
    """Copy the data of a file without its holes: a sparse file costs only what it really uses."""
    here = 0
    while (here := _next_data(source, here)) < size:
        end = min(os.lseek(source, here, os.SEEK_HOLE), size)
        os.lseek(target, here, os.SEEK_SET)
        while here < end and (sent := os.sendfile(target, source, here, min(_CHUNK, end - here))):
            here += sent
        here = end
    os.ftruncate(target, size)


def _next_data(file: int, here: int) -> int:
    try:
        return os.lseek(file, here, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:  # the rest of the file is a hole
            raise
        return sys.maxsize


def _read(file: int, limit: int) -> bytes:
    parts, size = [], 0
    while size < limit and (part := os.read(file, min(_CHUNK, limit - size))):
        parts.append(part)
        size += len(part)
    return b"".join(parts)
