"""Telling a database whose disk is full from one with another trouble."""

from __future__ import annotations

from typing import Final

from django.db import OperationalError

FULL: Final = "The disk of the database is full: nothing was changed. Agents go on, and what they say is kept."
NEXT_STEP: Final = "Make room on that disk, then try again."
_SQLITE: Final = "database or disk is full"
_POSTGRESQL: Final = "53100"


def is_full(error: BaseException | None) -> bool:
    """Whether a statement failed because there is no room for what it writes."""
    if not isinstance(error, OperationalError):
        return False
    return _SQLITE in str(error) or getattr(error.__cause__, "sqlstate", "") == _POSTGRESQL
