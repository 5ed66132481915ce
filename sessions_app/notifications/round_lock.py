"""At most one round of deliveries at a time on each machine, however many workers it has."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings


@contextmanager
def round_lock() -> Iterator[bool]:
    """Hold the lock within the block; yield False at once if another process of this machine holds it.

    The kernel releases the lock of a process that is killed.
    """
    path = Path(settings.KANDEV_DATA_DIR) / "notifications.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
