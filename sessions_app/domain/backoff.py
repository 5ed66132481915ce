"""How long to wait before the next start, when to stop starting, and what proves an agent healthy (rule 33)."""

from __future__ import annotations

from datetime import timedelta

FIRST = timedelta(seconds=5)
FIRST_STEADY, LONGEST_STEADY = timedelta(minutes=1), timedelta(minutes=10)
LONGEST_OF_FIRST = 60
"""The longest wait is so many times the first."""


def delay(attempt: int, random: float, first: timedelta = FIRST) -> timedelta:
    """The wait after the ``attempt``-th start (from 1) has failed: doubling up to sixty times the first.

    ``random`` in [0, 1) draws from the upper half of it, so that many do not start at once.
    """
    doublings = min(max(attempt, 1) - 1, 16)
    whole = min(first * (1 << doublings), first * LONGEST_OF_FIRST)
    return whole * (0.5 + random / 2)


def after_death(attempts: int, random: float, first: timedelta = FIRST) -> timedelta:
    """The wait before an agent that has died is started again, after ``attempts`` restarts that did not help.

    The first restart is immediate: most agents die once, and of something that has passed.
    """
    return delay(attempts, random, first) if attempts else timedelta()


def steady_after(attempts: int) -> timedelta:
    """How long an agent has to stay alive to count as healthy: longer with each restart, ten minutes at most."""
    return min(FIRST_STEADY * (1 << min(attempts, 8)), LONGEST_STEADY)


def gave_up(attempts: int, maximum: int) -> bool:
    """Whether only a user may start it again."""
    return attempts >= maximum
