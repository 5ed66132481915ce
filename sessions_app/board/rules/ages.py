"""How long ago something was, in a few characters (pure)."""

from __future__ import annotations

from datetime import datetime
from typing import Final

_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR


def age_text(since: datetime | None, now: datetime) -> str:
    """Return how long ago ``since`` was: ``5 min``, ``3 h`` or ``2 d``; empty if it is not known."""
    if since is None:
        return ""
    seconds = (now - since).total_seconds()
    if seconds < _MINUTE:
        return "now"
    if seconds < _HOUR:
        return f"{int(seconds // _MINUTE)} min"
    if seconds < _DAY:
        return f"{int(seconds // _HOUR)} h"
    return f"{int(seconds // _DAY)} d"
