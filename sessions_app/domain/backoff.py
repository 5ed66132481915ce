"""How long to wait before the next start, and when to stop starting (rule 33)."""

from __future__ import annotations

from datetime import timedelta

FIRST = timedelta(seconds=5)
LONGEST_OF_FIRST = 60
"""The longest wait is so many times the first."""


def delay(attempt: int, random: float, first: timedelta = FIRST) -> timedelta:
    """The wait after the ``attempt``-th start (from 1) has failed: doubling up to sixty times the first.

    ``random`` in [0, 1) draws from the upper half of it, so that many do not start at once.
    """
    doublings = min(max(attempt, 1) - 1, 16)
    whole = min(first * (1 << doublings), first * LONGEST_OF_FIRST)
    return whole * (0.5 + random / 2)


def gave_up(attempts: int, maximum: int) -> bool:
    """Whether only a user may start it again."""
    return attempts >= maximum
