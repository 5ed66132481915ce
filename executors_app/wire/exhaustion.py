"""A process or machine without descriptors or memory left cannot see what is there: that is no proof of absence.

Standard library only. Whoever takes an ``OSError`` for *there is none* calls `raise_if_exhausted` first, or enters
`suppress_absence`: otherwise a living process looks dead, an id is made anew, or work is overwritten as if there were
none. ``tests/house/test_exhaustion.py`` lists the exceptions.
"""

from __future__ import annotations

import errno
from typing import Final

EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Error numbers of a process or machine without descriptors or memory left: what they hide may be there in a moment."""
_MAX_CAUSES: Final = 8
"""Errors of a chain that are looked at: one could be its own cause."""


def is_exhausted(error: Exception) -> bool:
    """Return whether an error, or one that it follows from, says nothing about what is there."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if isinstance(cause, OSError) and cause.errno in EXHAUSTED:
            return True
        if cause is None:
            break
        cause = cause.__cause__
    return False


def raise_if_exhausted(error: Exception) -> None:
    """Raise ``error`` again if it says nothing about what is there."""
    if is_exhausted(error):
        raise error


class suppress_absence:  # noqa: N801 - as contextlib.suppress
    """Suppress an OSError of the block, unless it says nothing about what is there."""

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        """Return whether the block's error is suppressed."""
        return isinstance(error, OSError) and not is_exhausted(error)
