"""Whether and when a session goes on after a usage limit (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from executors_app.agents.limit_resets import MOST

FIRST_PAUSE: Final = timedelta(seconds=5)
"""Time between the end of a limit and the first session that goes on: clocks differ a little."""
LEAST_SPREAD: Final = timedelta(seconds=30)
"""Sessions that are suspended until the same time go on within this time, one after the other."""
PER_SESSION: Final = timedelta(seconds=1)
"""What each further session adds to it."""
LONGEST_HOLD: Final = MOST + timedelta(days=1)
"""No session waits longer; a later time was written under a wrong clock, and counts as past."""


class SuspensionEnd(StrEnum):
    """How a suspension ended."""

    RESET = "reset"
    """Its time came."""
    USER = "user"
    """Somebody did not wait for it."""
    REPEATED = "repeated"
    """The agent reported a limit again; another suspension follows."""
    OBSOLETE = "obsolete"
    """A turn has ended well meanwhile, or the session or its task is over."""


class Continuation(StrEnum):
    """What happens to the turn that a limit has ended, when the limit ends."""

    NOTHING = "nothing"
    """A person decides."""
    AGAIN = "again"
    """Its prompt is given once more: the agent had refused it before it did anything."""
    CONTINUE = "continue"
    """The agent is asked to continue what it had begun."""
    WITHDRAWN = "withdrawn"
    """Somebody has cancelled it while the limit lasted."""


@dataclass(frozen=True, slots=True)
class CutOffTurn:
    """The turn that a limit has ended."""

    has_prompt: bool
    """Whether its prompt is known, and was not sent again by somebody meanwhile."""
    has_worked: bool
    """Whether the agent had used a tool in it."""
    refuses_first: bool
    """Whether the agent's type is proven to refuse a prompt before it works on it."""
    windows: int
    """How many limits in a row have ended its work before, after each of which it was continued by itself."""
    is_withdrawn: bool = False
    """Whether somebody has cancelled it while the limit lasted."""


def continuation(turn: CutOffTurn, windows: int, *, by_user: bool) -> Continuation:
    """Return what happens to a turn when its limit ends.

    Args:
        turn: the turn that the limit has ended.
        windows: after how many limits in a row work continues by itself (``KANDEV_CONTINUE_AT_RESET``); 0: never.
        by_user: somebody has asked for it, so that no policy is needed.
    """
    if not turn.has_prompt:
        return Continuation.NOTHING
    if turn.is_withdrawn and not by_user:
        return Continuation.WITHDRAWN
    allowed = windows
    if turn.refuses_first and not turn.has_worked:
        allowed = max(windows, 1)  # nothing can happen twice, so once is safe without a policy
    if not by_user and turn.windows >= allowed:
        return Continuation.NOTHING
    is_safe = turn.refuses_first or by_user
    if turn.has_worked or not is_safe:
        return Continuation.CONTINUE  # an agent may work without tools, so it is told to look first
    return Continuation.AGAIN


def wake_time(reset_at: datetime, suspended: int, chance: float) -> datetime:
    """Return when a session goes on, so that many do not go on in the same second.

    Args:
        reset_at: when the limit ends.
        suspended: how many sessions are suspended now.
        chance: a random number from 0 to 1.
    """
    spread = max(LEAST_SPREAD, suspended * PER_SESSION)
    return reset_at + FIRST_PAUSE + chance * spread
