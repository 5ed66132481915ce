"""The kinds of waits, each declared in the ``open_waits`` of its topic. Every surface shows those listed here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sessions_app.permissions import open_waits as permissions
from sessions_app.suspensions import open_waits as suspensions
from sessions_app.usage import open_waits as usage
from sessions_app.waits import open_waits as waits
from sessions_app.waits.sources import WaitSource

WAIT_SOURCES: Final[Sequence[WaitSource]] = (
    *permissions.WAIT_SOURCES,
    *waits.WAIT_SOURCES,
    *suspensions.WAIT_SOURCES,
    *usage.WAIT_SOURCES,
)
