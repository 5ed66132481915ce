"""The memory of web, supervisor, worker and their children, which must stop growing at a working size."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final, Self

from tests.drills.process_groups import descendants

SAMPLE_INTERVAL: Final = 0.5
"""Seconds between two samples."""
MAX_GROWTH: Final = 10.0
"""Megabytes that a process may grow in the second half of its life, in addition to a tenth of its size.

Each session that is recovered meanwhile takes about 0.1 MB, and a used heap is fragmented.
"""
MAX_GROWTH_RATIO: Final = 1.1
MIN_SAMPLES: Final = 40
"""Samples needed to judge a process: its first half includes the startup, its second half must be flat."""


@dataclass
class ProcessMemory:
    """The memory samples of a process in megabytes, from its start to its end."""

    role: str
    pid: int
    samples: list[float] = field(default_factory=list)

    @property
    def first(self) -> float:
        """Return the size halfway through its life: a median, so that a single sample does not matter."""
        return median(self.samples[len(self.samples) // 2 :][:4] or [0.0])

    @property
    def last(self) -> float:
        """Return the size at the end."""
        return median(self.samples[-4:] or [0.0])

    @property
    def has_enough_samples(self) -> bool:
        """Return whether there are enough samples to judge it."""
        return len(self.samples) >= MIN_SAMPLES

    @property
    def grew_too_much(self) -> bool:
        """Return whether it grew more than a process may after its startup."""
        return self.has_enough_samples and self.last > self.first * MAX_GROWTH_RATIO + MAX_GROWTH


def private_megabytes(pid: int) -> float:
    """Return the private memory of a process in megabytes; 0 if it has ended.

    Excludes mapped files: the kernel can drop their pages, and SQLite's database file grows.
    """
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0.0
    return (int(resident) - int(shared)) * 4096 / 1e6


class MemorySampler:
    """Sample the memory of the running processes and their children until the block ends."""

    def __init__(self, running: Callable[[], Mapping[str, int]]):
        self._running = running
        self.processes: dict[int, ProcessMemory] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stopped.wait(SAMPLE_INTERVAL):
            for role, pid in self._running().items():
                self._record(role, pid)
                for child in descendants(pid):
                    self._record(f"{role}'s child", child)

    def _record(self, role: str, pid: int) -> None:
        if size := private_megabytes(pid):
            self.processes.setdefault(pid, ProcessMemory(role, pid)).samples.append(size)


def longest_lived(processes: Sequence[ProcessMemory]) -> dict[str, ProcessMemory]:
    """Return the longest-lived process of each role, whose growth is the most significant."""
    return {process.role: process for process in sorted(processes, key=lambda process: len(process.samples))}
