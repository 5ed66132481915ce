"""What a supervisor measures of its own work: kept in memory for some seconds, then added to the database.

A supervisor that is killed takes its last ``KEPT`` seconds of it along; nothing that rows know is counted here.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from sessions_app.models import metric_count

KEPT: Final = 5.0
"""Seconds between two additions to the database."""
PASS_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Seconds."""
LAG_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600)
"""Seconds."""
BUCKETS: Final[Mapping[str, tuple[float, ...]]] = {
    "kandev_sweep_duration_seconds": PASS_BUCKETS,
    "kandev_reconciler_reconcile_duration_seconds": PASS_BUCKETS,
    "kandev_event_lag_seconds": LAG_BUCKETS,
}


class Tally:
    """Counts of one process, from whatever thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[name, tuple(sorted(labels.items()))] += value

    def observe(self, name: str, seconds: float) -> None:
        """Put a duration into a histogram of ``BUCKETS``; one that a clock has turned negative is none."""
        seconds = max(seconds, 0.0)
        edge = next((f"{one:g}" for one in BUCKETS[name] if seconds <= one), "+Inf")
        self.count(f"{name}_bucket", le=edge)
        self.count(f"{name}_sum", seconds)

    def swept(self, trigger: str, seconds: float, seen: Iterable[tuple[str, str]]) -> None:
        """One pass, with runtime and observation of each execution."""
        self.observe("kandev_sweep_duration_seconds", seconds)
        if trigger == "reconcile":
            self.observe("kandev_reconciler_reconcile_duration_seconds", seconds)
        for runtime, observed in seen:
            self.count("kandev_sweep_executors_total", runtime=runtime, observed=observed)

    def written(self, said_at: float) -> None:
        """Lines of a journal are in the log now, the first of which was said then."""
        self.observe("kandev_event_lag_seconds", time.time() - said_at)

    def flush(self, part: str) -> None:
        """Add everything to the database; what cannot be added now is kept for the next time."""
        with self._lock:
            taken, self._counts = self._counts, defaultdict(float)
        try:
            metric_count.add([(name, dict(labels), value) for (name, labels), value in taken.items()], part)
        except BaseException:
            with self._lock:
                for key, value in taken.items():
                    self._counts[key] += value
            raise


TALLY: Final = Tally()
"""That of this process."""
