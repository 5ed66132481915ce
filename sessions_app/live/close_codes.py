"""Why a socket was closed (interfaces 5)."""

from __future__ import annotations

from enum import IntEnum


class CloseCode(IntEnum):
    """What a client that loses its socket is told; after *slow* and those behind it it may come back."""

    ENDED = 1000
    """The shell has."""
    INVALID = 4400
    """Of a shell: no such size or name."""
    NOT_AUTHENTICATED = 4401
    FORBIDDEN = 4403
    """Seen, but not for this user to operate: shells where agents are not isolated."""
    NOT_FOUND = 4404
    """Not there, or not the user's."""
    SLOW = 4408
    """It left too much unacknowledged: come back with ``?after=``."""
    OVERTAKEN = 4410
    """The same shell was opened elsewhere."""
    TOO_MANY = 4429
    UNREACHABLE = 4503
    """The database, or of a shell the session's agentctl, does not answer."""
    FAILED = 1011
