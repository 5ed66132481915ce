"""What follows from the signs of life of a process (pure)."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

BEAT_EVERY: Final = 30.0
"""Maximum seconds between two signs of life. Each is one short write, also for SQLite, which has only one writer."""
MISSING: Final = 3
"""Signs of life that are missing when a process is silent: two may get lost, as while the database restarts."""
RUNS_FOR: Final = timedelta(seconds=MISSING * BEAT_EVERY)
"""How long a process that reported counts as running before a database is replaced, which cannot be undone."""


def beat_every(lease: float, *, is_shared: bool) -> float:
    """Return the seconds between two signs of life; ``lease`` is the lifetime of a lease in seconds.

    Where hosts share the database, a process that is gone has to show within the time of a lease, as its leases do. All
    processes of an embedded database are on one machine, which proves their end, and share its only writer.
    """
    if is_shared:
        return min(BEAT_EVERY, lease / MISSING)
    return BEAT_EVERY


class Life(StrEnum):
    """What is known of a process."""

    UP = "up"
    STOPPING = "stopping"
    """It was told to end, and finishes what it is doing."""
    SILENT = "silent"
    """It has not reported ``MISSING`` times in a row: dead, cut off, or too busy. Which one is unknown."""
    STOPPED = "stopped"
    """It has ended as it should, or its host has proven that it is gone."""


LABELS: Final = {Life.UP: "Up", Life.STOPPING: "Stopping", Life.SILENT: "Silent", Life.STOPPED: "Stopped"}
TONES: Final = {Life.UP: "good", Life.STOPPING: "busy", Life.SILENT: "bad", Life.STOPPED: "off"}


def judge_life(
    beat_at: datetime,
    ended_at: datetime | None,
    now: datetime,
    stopping_at: datetime | None = None,
    *,
    silent_after: timedelta,
) -> Life:
    """Return what is known at ``now`` of a process that last reported at ``beat_at``; all by the database's clock."""
    if ended_at is not None:
        return Life.STOPPED
    if now - beat_at > silent_after:
        return Life.SILENT
    if stopping_at is not None:
        return Life.STOPPING
    return Life.UP
