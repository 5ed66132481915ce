"""What follows from the signs of life of a process (pure)."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

BEAT_EVERY: Final = 30.0
"""Seconds between two signs of life. Each is one short write, also for SQLite, which has only one writer."""
SILENT_AFTER: Final = timedelta(seconds=3 * BEAT_EVERY)
"""Two signs of life may get lost, as while the database restarts."""


class Life(StrEnum):
    """What is known of a process."""

    UP = "up"
    STOPPING = "stopping"
    """It was told to end, and finishes what it is doing."""
    SILENT = "silent"
    """It has not reported for ``SILENT_AFTER``: dead, cut off, or too busy. Which one is unknown."""
    STOPPED = "stopped"
    """It has ended as it should, or its host has proven that it is gone."""


LABELS: Final = {Life.UP: "Up", Life.STOPPING: "Stopping", Life.SILENT: "Silent", Life.STOPPED: "Stopped"}
TONES: Final = {Life.UP: "good", Life.STOPPING: "busy", Life.SILENT: "bad", Life.STOPPED: "off"}


def judge_life(
    beat_at: datetime, ended_at: datetime | None, now: datetime, stopping_at: datetime | None = None
) -> Life:
    """Return what is known at ``now`` of a process that last reported at ``beat_at``; all by the database's clock."""
    if ended_at is not None:
        return Life.STOPPED
    if now - beat_at > SILENT_AFTER:
        return Life.SILENT
    if stopping_at is not None:
        return Life.STOPPING
    return Life.UP
