"""Ever longer pauses between tries that fail, so that what cannot succeed now fills neither log nor database."""

from __future__ import annotations

import time
from typing import Final

SHORTEST: Final = 0.2
LONGEST: Final = 10.0
FORGOTTEN: Final = 60.0
"""Seconds without a failure after which the next one counts as the first."""


class Pace:
    """Pauses of 0.2 s, doubled up to 10 s; a success, or a minute of peace, forgets them."""

    def __init__(self) -> None:
        self._failures = 0
        self._not_before = 0.0

    @property
    def rest(self) -> float:
        """Seconds until the pause after the last failure is over; 0 when it is."""
        return max(0.0, self._not_before - time.monotonic())

    @property
    def rests(self) -> bool:
        """The pause after the last failure is not over."""
        return self.rest > 0

    @property
    def is_calm(self) -> bool:
        """Nothing has failed of late."""
        return self._failures == 0 or time.monotonic() - self._not_before > FORGOTTEN

    def failed(self) -> float:
        """Begin the next pause; its seconds."""
        if self.is_calm:
            self._failures = 0
        seconds = min(LONGEST, SHORTEST * float(2**self._failures))
        self._failures = min(self._failures + 1, 10)
        self._not_before = time.monotonic() + seconds
        return seconds

    def succeeded(self) -> None:
        """Begin anew with the shortest pause."""
        self._failures, self._not_before = 0, 0.0
