"""Why a socket was closed (interfaces 5)."""

from __future__ import annotations

from enum import IntEnum


class CloseCode(IntEnum):
    """What a client that loses its socket is told; after the last three it may come back."""

    NOT_AUTHENTICATED = 4401
    NOT_FOUND = 4404
    """Not there, or not the user's."""
    SLOW = 4408
    """It left too much unacknowledged: come back with ``?after=``."""
    TOO_MANY = 4429
    FAILED = 1011
