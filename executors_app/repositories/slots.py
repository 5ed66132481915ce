"""Slots for costly git calls: few run at once on the whole machine, and one repository's calls never fill them.

A costly call is one whose cost an agent can choose: checking a bundle, copying a history, showing saved work. Each
takes a lock on one of a few files, so the limit holds across processes; git inherits the lock, so the slot stays taken
while a git of a killed process lives. Each repository has a lock of its own in front, so that it takes one slot at
most, however many of its sessions want one. A repository whose last call was long steps back for as long before it
takes another one while others are running: two slots can then not be kept by two hostile teams.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final

from django.conf import settings

MAX_STEP_BACK: Final = 60.0
"""Seconds that a repository steps back at most."""
_POLL: Final = 0.02
_MAX_POLL: Final = 0.25


class Pool(StrEnum):
    """What a call needs a slot for."""

    HEAVY = "heavy"
    VIEW = "view"


SLOTS: Final = {Pool.HEAVY: 2, Pool.VIEW: 4}
"""Calls that run at once on this machine."""
WAIT_SECONDS: Final = {Pool.HEAVY: 600.0, Pool.VIEW: 20.0}
"""Seconds that a call waits for a slot."""


class NoFreeSlot(Exception):
    """No slot became free in time."""


@contextmanager
def git_slot(pool: Pool, account: str, seconds: float | None = None) -> Iterator[tuple[int, ...]]:
    """Hold a slot for a costly call of a repository; yields the descriptors of its locks.

    ``account`` names the repository, ``seconds`` are how long to wait. Raises NoFreeSlot.
    """
    if seconds is None:
        seconds = WAIT_SECONDS[pool]
    until = time.monotonic() + seconds
    directory = _directory()
    own = _open(directory / f"{pool}-{hashlib.sha256(os.fsencode(account)).hexdigest()[:32]}")
    try:
        _wait_for(own, until)
        slot = _take_slot(directory, pool, own, until)
        begun = time.monotonic()
        try:
            yield (own, slot)
        finally:
            os.close(slot)
            _step_back(own, time.monotonic() - begun)
    finally:
        os.close(own)


def _directory() -> Path:
    path = Path(settings.KANDEV_DATA_DIR) / "git-slots"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _wait_for(descriptor: int, until: float) -> None:
    pause = _POLL
    while not _lock(descriptor):
        _sleep(pause, until)
        pause = min(pause * 2, _MAX_POLL)


def _take_slot(directory: Path, pool: Pool, own: int, until: float) -> int:
    """Take a free slot once it is this repository's turn."""
    turn, pause = min(os.fstat(own).st_mtime, time.time() + MAX_STEP_BACK), _POLL
    while True:
        free, others = _try_slots(directory, pool)
        if free is not None and (not others or time.time() >= turn):
            return free
        if free is not None:
            os.close(free)
        _sleep(pause, until)
        pause = min(pause * 2, _MAX_POLL)


def _try_slots(directory: Path, pool: Pool) -> tuple[int | None, bool]:
    """Return a free slot that is now locked, and whether any other one is taken."""
    free: int | None = None
    others = False
    for number in range(SLOTS[pool]):
        descriptor = _open(directory / f"{pool}-slot-{number}")
        is_free = _lock(descriptor)
        if is_free and free is None:
            free = descriptor
            continue
        others = others or not is_free
        os.close(descriptor)
    return free, others


def _step_back(own: int, used: float) -> None:
    """Record in the lock file's time when this repository may take the next slot."""
    turn = time.time() + min(used, MAX_STEP_BACK)
    os.utime(own, (turn, turn))


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sleep(pause: float, until: float) -> None:
    if time.monotonic() + pause > until:
        raise NoFreeSlot("Other git commands kept this one from starting. It is tried again later.")
    time.sleep(pause)
