"""Notice that git waits for something that never comes, such as a pipe in place of an object.

Whoever writes a repository can make git wait as long as its limit of time allows, which takes nothing, while git holds
a slot that others need.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from executors_app.wire.exhaustion import raise_if_exhausted

IDLE_SECONDS: Final = 60.0
"""Seconds without any work after which processes count as hanging."""
_LOOKS: Final = 12
"""How often this is looked at in that time."""
_AT_WORK: Final = "RD"
"""States of a process that computes, or waits for a processor or a disk."""


class Progress:
    """Knows since when some process groups have done nothing."""

    def __init__(self, groups: Collection[int]):
        self._groups, self._since = groups, time.monotonic()
        # Unknown until the first look, which most calls of git never reach: each look reads all of /proc.
        self._work: int | None = None

    @property
    def next_look(self) -> float:
        """When to call ``is_idle`` next, on the monotonic clock."""
        return time.monotonic() + IDLE_SECONDS / _LOOKS

    def is_idle(self) -> bool:
        """Whether the groups have done nothing for long."""
        work = _work_of(self._groups)
        if work is None or work != self._work:
            self._work, self._since = work, time.monotonic()
        return time.monotonic() - self._since >= IDLE_SECONDS


def _work_of(groups: Collection[int]) -> int | None:
    """Return the CPU time that the groups' processes have used, in ticks; None if one of them may be at work."""
    total = 0
    try:
        for state, group, ticks in _processes():
            if group in groups:
                if state in _AT_WORK:
                    return None
                total += ticks
    except OSError:  # no descriptors are left to see them with
        return None
    return total


def _processes() -> Iterator[tuple[str, int, int]]:
    """Yield state, group and CPU time of each process that can be seen."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError as error:
            raise_if_exhausted(error)
            continue  # it has ended
        yield fields[0], int(fields[2]), sum(map(int, fields[11:15]))
