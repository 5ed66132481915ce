"""How long somebody who did not answer is left in peace: growing pauses with jitter, each peer for itself."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Final

FIRST_DELAY: Final = 1.0
MAX_DELAY: Final = 20.0
"""Seconds; below the pause between two looks of the loop, so that a peer that is back is soon seen."""


@dataclass(slots=True)
class _PeerState:
    failures: int
    until: float
    reason: str


class PeerBackoff:
    """By peer, how often it has not answered; in this process's memory, where the worst of losing it is one try."""

    def __init__(self) -> None:
        self._silent: dict[str, _PeerState] = {}

    def reason_to_wait(self, peer: str) -> str:
        """Why the peer gave no answer the last time, while it is left in peace; else empty."""
        found = self._silent.get(peer)
        return found.reason if found and time.monotonic() < found.until else ""

    def failed(self, peer: str, reason: str) -> None:
        """It gave no answer."""
        before = self._silent.get(peer)
        failures = before.failures + 1 if before else 1
        self._silent[peer] = _PeerState(failures, time.monotonic() + backoff_delay(failures), reason)

    def answered(self, peer: str) -> None:
        """It is there."""
        self._silent.pop(peer, None)


def backoff_delay(failures: int, first: float = FIRST_DELAY, longest: float = MAX_DELAY) -> float:
    """Seconds until the next try: doubled with each failure, and cut by up to a half, lest many come at once."""
    whole = min(longest, first * 2.0 ** min(failures - 1, 16))
    return whole * random.uniform(0.5, 1.0)  # noqa: S311
