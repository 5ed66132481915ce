"""Files that are being discarded: set aside, deleted once it is certain that they may be, and found after a kill.

A file is renamed into a directory beside it, whose name says what was shown of it. If agentctl is killed in between,
the file is found there later: it is deleted if it is exactly what a person has confirmed to discard and its place is
taken, and gets its name again if that is free. What is neither stays, in a directory that is looked at no more. All
calls block.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

_PLACE: Final = re.compile(r"\.[0-9a-f]{32}-[0-9a-f]{8}\.discarded")
_SUFFIX: Final = ".discarded"
_KEPT_SUFFIX: Final = ".kept"
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def set_aside(folder: int, name: str, content: str) -> Iterator[int]:
    """Rename a file of an opened directory, and delete it after the block; after an error it has its name again.

    Yields the opened directory where it is meanwhile. ``content`` is what was shown of it. Raises OSError.
    """
    place = f".{_digest(content)}-{secrets.token_hex(4)}{_SUFFIX}"
    os.mkdir(place, 0o755, dir_fd=folder)
    aside = os.open(place, _DIRECTORY, dir_fd=folder)
    try:
        # Whoever finds the file meanwhile leaves it alone: only the lock of a killed process is free.
        fcntl.flock(aside, fcntl.LOCK_EX)
        try:
            os.rename(name, name, src_dir_fd=folder, dst_dir_fd=aside)
            yield aside
        except BaseException:
            with suppress(OSError):
                _put_back(aside, folder, name)
            raise
        os.unlink(name, dir_fd=aside)
    finally:
        os.close(aside)
        _remove_if_empty(folder, place)


def split_discarded(path: str) -> tuple[str, str, str] | None:
    """Return directory, place and name of a file that was set aside; None if the path is not that of one."""
    outer, _, name = path.rpartition("/")
    folder, _, place = outer.rpartition("/")
    if name and _PLACE.fullmatch(place):
        return folder, place, name
    return None


def kept_place(place: str) -> str:
    """Return the name that a place has once ``finish_discard`` has returned ``kept``."""
    return place.removesuffix(_SUFFIX) + _KEPT_SUFFIX


def finish_discard(folder: int, place: str, name: str, read_content: Callable[[int], str]) -> str:
    """Finish or undo what a killed agentctl has begun, and return ``deleted``, ``restored`` or ``kept``.

    Empty if nothing is to be done. ``folder`` is the opened directory of the file, ``place`` the name of the one in it
    where the file is now, which ``read_content`` gets opened. Raises OSError, and what that raises.
    """
    aside = os.open(place, _DIRECTORY, dir_fd=folder)
    try:
        try:
            fcntl.flock(aside, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return ""
        if not _is_there(aside, name):
            return ""
        if not _is_there(folder, name):
            _put_back(aside, folder, name)
            return "" if _is_there(aside, name) else "restored"
        if not place.startswith(f".{_digest(read_content(aside))}-"):
            # It is said once: what keeps the name of the place would be found, read and told with each status.
            os.rename(place, kept_place(place), src_dir_fd=folder, dst_dir_fd=folder)
            return "kept"
        os.unlink(name, dir_fd=aside)
        return "deleted"
    finally:
        os.close(aside)
        _remove_if_empty(folder, place)


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _is_there(folder: int, name: str) -> bool:
    try:
        os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def _remove_if_empty(folder: int, place: str) -> None:
    with suppress(OSError):
        os.rmdir(place, dir_fd=folder)


def _put_back(aside: int, folder: int, name: str) -> None:
    """Give a file its name again, but never over one that has appeared meanwhile: then both stay."""
    try:
        os.link(name, name, src_dir_fd=aside, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return
    except OSError:  # of a directory, or where files cannot have two names
        if not _is_there(folder, name):
            os.rename(name, name, src_dir_fd=aside, dst_dir_fd=folder)
        return
    os.unlink(name, dir_fd=aside)
