"""What had to end with an agent: the command lines of the processes that it left running.

Its guard writes them, so that they are known even where this agentctl died too. One file an execution; a new
agent begins it anew.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

FILE: Final = "ended_with_agent"
MOST: Final = 100
"""Lines that are read."""


class _Place:
    """Where the guards of this agentctl leave their last words."""

    path: Path | None = None


def leave_in(state_dir: Path) -> None:
    """From now on guards write into this directory; without it they say nothing."""
    _Place.path = state_dir / FILE


def descriptor() -> int:
    """The file for the next guard, open; -1 where there is none. The caller closes it."""
    return _opened(0)


def forget() -> None:
    """Empty the file, before a new agent begins."""
    opened = _opened(os.O_TRUNC)
    if opened >= 0:
        os.close(opened)


def _opened(how: int) -> int:
    if _Place.path is None:
        return -1
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | how
    with contextlib.suppress(OSError):
        return os.open(_Place.path, flags, 0o600)
    return -1


def read() -> list[str]:
    """What ended with the last agent, by command line, oldest first; empty where nothing did or nobody knows."""
    if _Place.path is None:
        return []
    try:
        lines = _Place.path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line for line in dict.fromkeys(lines) if line.strip()][:MOST]
