"""The memory of web, supervisor, worker and their children: it may grow to its working size, and not for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final, Self

from tests.drills.process_groups import descendants

EVERY: Final = 0.5
"""Seconds between two samples."""
SOME: Final = 10.0
"""Megabytes that a process may grow in the second half of its life, and a tenth of what it had.

Sessions that come back to it in the rest take about 0.1 MB each, and a heap that is used is not without holes.
"""
SHARE: Final = 1.1
ENOUGH: Final = 40
"""Samples of a life that can be judged: its first half is the coming up, its second must be flat."""


@dataclass
class Life:
    """One process from its start to its death: megabytes, sample by sample."""

    role: str
    pid: int
    samples: list[float] = field(default_factory=list)

    @property
    def first(self) -> float:
        """What it had at half of its life: a median, so that one sample means nothing."""
        return median(self.samples[len(self.samples) // 2 :][:4] or [0.0])

    @property
    def last(self) -> float:
        """What it had in the end."""
        return median(self.samples[-4:] or [0.0])

    @property
    def is_judged(self) -> bool:
        """Whether it lived long enough."""
        return len(self.samples) >= ENOUGH

    @property
    def grew_too_much(self) -> bool:
        """Whether it took more than a process may that has come up."""
        return self.is_judged and self.last > self.first * SHARE + SOME


def private(pid: int) -> float:
    """Megabytes that a process has for itself; 0 where it has ended.

    Not the pages of files that it maps: they are the kernel's to drop, and SQLite's database is one that grows.
    """
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0.0
    return (int(resident) - int(shared)) * 4096 / 1e6


class Watch:
    """Samples whoever lives, until the block ends."""

    def __init__(self, living: Callable[[], Mapping[str, int]]):
        self._living = living
        self.lives: dict[int, Life] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(EVERY):
            for role, pid in self._living().items():
                self._take(role, pid)
                for child in descendants(pid):
                    self._take(f"{role}'s child", child)

    def _take(self, role: str, pid: int) -> None:
        if size := private(pid):
            self.lives.setdefault(pid, Life(role, pid)).samples.append(size)


def longest(lives: Sequence[Life]) -> dict[str, Life]:
    """By role, the life that lasted longest: the one whose growth tells most."""
    return {life.role: life for life in sorted(lives, key=lambda life: len(life.samples))}
