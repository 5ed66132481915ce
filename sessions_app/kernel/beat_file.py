"""A file that a process touches as long as it goes on, for the probe that restarts it if it hangs."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final

from django.conf import settings

log = logging.getLogger(__name__)
TOUCH_EVERY: Final = 5.0
"""Minimum seconds between two touches."""


class BeatFile:
    """The file ``KANDEV_BEAT_PATH``, whose age is the time since this process last went on; none if that is not set.

    It is touched where the process comes back from its database, also with an error: waiting for a database that fails
    is going on. `kandev.liveness` reads it.
    """

    def __init__(self) -> None:
        self._path: Path | None = settings.KANDEV_BEAT_PATH
        self._next_at = 0.0
        self._is_failing = False

    def touch(self) -> None:
        """Touch the file if the last time is ``TOUCH_EVERY`` seconds ago; a failure is logged once."""
        now = time.monotonic()
        if self._path is None or now < self._next_at:
            return
        self._next_at = now + TOUCH_EVERY
        try:
            self._path.touch()
        except OSError as error:
            if not self._is_failing:
                log.warning("%s cannot be touched, so this process looks as if it hung: %s", self._path, error)
            self._is_failing = True
        else:
            self._is_failing = False
