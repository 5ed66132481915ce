"""When what is wrong with a deployment is shown to staff in their inbox (pure)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

RAISE_AFTER: Final = timedelta(minutes=3)
"""How long a process must have been missing: restarts and roll-outs are shorter."""
LOW_BYTES: Final = 5_000_000_000
"""What the disk of a data directory must have left; the alert for Prometheus has the same limit."""
ENOUGH_BYTES: Final = 6_000_000_000
"""What it must have left again before the trouble is over, so that a disk at the limit is not reported repeatedly."""


def is_missing(since: datetime | None, now: datetime, *, was_missing: bool) -> bool:
    """Return whether a missing process is shown. ``since``: when it was last there; None: unknown."""
    return was_missing or since is None or now - since >= RAISE_AFTER


def is_disk_low(free: int, *, was_low: bool) -> bool:
    """Return whether a disk has too little left, in bytes."""
    if was_low:
        return free < ENOUGH_BYTES
    return free < LOW_BYTES


def is_backup_old(began_at: datetime, now: datetime, limit: float) -> bool:
    """Return whether the newest backup is too old. ``limit``: how many seconds old one may be; zero: any age."""
    return limit > 0 and (now - began_at).total_seconds() > limit
