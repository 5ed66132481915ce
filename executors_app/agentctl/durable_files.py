"""Small files that are either wholly there, on the disk, or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of ``path``, 0600 and on the disk before this returns; raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        write_all(fd, data, 0)
        os.fsync(fd)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    draft.replace(path)
    sync_directory(path.parent)


def write_all(fd: int, data: bytes, offset: int) -> int:
    """Write every byte at ``offset`` whatever short writes there are; returns the offset behind them."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
    return offset


def sync_directory(directory: Path) -> None:
    """Make the names in a directory as durable as the files."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
