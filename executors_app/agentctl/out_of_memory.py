"""Whether the kernel has killed for want of memory where we live: our control group's own count, as in a container.

An agent that is killed so just ends with signal 9, which tells its user nothing. Standard library alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_COUNTS: Final = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
"""Of cgroup version 2, and of version 1: what a container sees there is its own."""


def kills(places: tuple[Path, ...] = _COUNTS) -> int:
    """How many processes were killed so far; 0 where nobody counts."""
    for place in places:
        try:
            lines = place.read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):
            continue
        for line in lines:
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdigit():
                return int(count)
    return 0
