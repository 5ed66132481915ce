"""Files of other people's making, read as data: bounded, regular files only, nothing is waited for."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path


def read(path: Path, limit: int, *, follow: bool = True) -> bytes | None:
    """The first ``limit`` bytes of a regular file; None where there is none that can be read."""
    try:
        # Opening a pipe that nobody writes to would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))
    except (OSError, ValueError):
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None


def entries(folder: Path, limit: int) -> Iterator[os.DirEntry[str]]:
    """What is in a folder, ``limit`` entries at most; nothing for what is none."""
    try:
        with os.scandir(folder) as found:
            for number, entry in enumerate(found):
                if number == limit:
                    return
                yield entry
    except OSError:
        return
