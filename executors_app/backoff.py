"""Exponential back-off between retries in this process.

Delays that are stored in the database, of restarts and of notifications, outlive the process and have rules of their
own.
"""

from __future__ import annotations

import random
import time
from typing import Final

INITIAL_DELAY: Final = 0.2
MAX_DELAY: Final = 10.0
RESET_AFTER: Final = 60.0
"""Seconds without a failure after which the next failure counts as the first."""
PEER_INITIAL_DELAY: Final = 1.0
PEER_MAX_DELAY: Final = 20.0
"""Seconds; shorter than the pause between two sweeps, so that a peer that is back is noticed soon."""


def backoff_delay(failures: int, first: float, longest: float) -> float:
    """Return the seconds to wait after this many consecutive failures: ``first``, doubling up to ``longest``."""
    return min(longest, first * 2.0 ** min(failures - 1, 16))


def jittered_delay(failures: int, first: float = PEER_INITIAL_DELAY, longest: float = PEER_MAX_DELAY) -> float:
    """Return ``backoff_delay`` shortened by up to a half, so that callers do not retry at the same moment."""
    return backoff_delay(failures, first, longest) * random.uniform(0.5, 1.0)  # noqa: S311


class Backoff:
    """Exponential back-off between retries: 0.2 s, doubling to at most 10 s.

    Resets after a success, or after 60 s without a failure.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._not_before = 0.0

    @property
    def remaining(self) -> float:
        """Seconds left of the delay after the last failure; 0 once it has elapsed."""
        return max(0.0, self._not_before - time.monotonic())

    @property
    def is_waiting(self) -> bool:
        """Whether the delay after the last failure has not elapsed yet."""
        return self.remaining > 0

    @property
    def is_reset(self) -> bool:
        """Whether the next failure counts as the first."""
        return self._failures == 0 or time.monotonic() - self._not_before > RESET_AFTER

    def record_failure(self) -> float:
        """Start the next delay and return its seconds."""
        if self.is_reset:
            self._failures = 0
        self._failures += 1
        seconds = backoff_delay(self._failures, INITIAL_DELAY, MAX_DELAY)
        self._not_before = time.monotonic() + seconds
        return seconds

    def reset(self) -> None:
        """Start over with the shortest delay."""
        self._failures, self._not_before = 0, 0.0


class PeerBackoff:
    """Back-off for each of many peers, by URL.

    ``first`` and ``longest``: seconds of the shortest and of the longest delay. Kept in this process's memory: losing
    it costs one needless attempt for each peer.
    """

    def __init__(self, first: float = PEER_INITIAL_DELAY, longest: float = PEER_MAX_DELAY) -> None:
        self._first, self._longest = first, longest
        self._failed: dict[str, tuple[int, float, str]] = {}
        """By peer: failures in a row, when it may be tried again (monotonic), and the last reason."""

    def reason_to_wait(self, peer: str) -> str:
        """Return why the last attempt failed while its delay has not elapsed; else an empty string."""
        _, until, reason = self._failed.get(peer, (0, 0.0, ""))
        if time.monotonic() < until:
            return reason
        return ""

    def record_failure(self, peer: str, reason: str) -> None:
        """Start the peer's next delay."""
        failures = self._failed.get(peer, (0, 0.0, ""))[0] + 1
        self._failed[peer] = (failures, time.monotonic() + jittered_delay(failures, self._first, self._longest), reason)

    def reset(self, peer: str) -> None:
        """Forget the failures of a peer that has answered."""
        self._failed.pop(peer, None)
