"""Whether and when a session goes on after a usage limit, or during an outage of its provider (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from executors_app.agents import CREDIT_EXHAUSTED, USAGE_LIMIT
from executors_app.agents.limit_resets import MOST
from sessions_app.sessions.rules.situation_facts import LABELS, Code, Label, humanize_code
from sessions_app.turns.rules.transient_errors import TROUBLE_SENTENCES

FIRST_PAUSE: Final = timedelta(seconds=5)
"""Time between the end of a limit and the first session that goes on: clocks differ a little."""
LEAST_SPREAD: Final = timedelta(seconds=30)
"""Sessions that are suspended until the same time go on within this time, one after the other."""
PER_SESSION: Final = timedelta(seconds=1)
"""What each further session adds to it."""
LONGEST_HOLD: Final = MOST + timedelta(days=1)
"""No session waits longer; a later time was written under a wrong clock, and counts as past."""
LONGEST_OWN_WAIT: Final = timedelta(hours=24)
"""How long an agent that waits by itself is left alone if it does not say until when."""


TRY_DELAYS: Final = tuple(timedelta(minutes=minutes) for minutes in (5, 10, 20, 40, 60))
"""Delays before the first, second, … try during an outage that has outlasted the retries; the last one repeats."""
MOST_TRIES: Final = 28
"""Tries during an outage, together about a day; then a person decides."""

HEADLINES: Final[Mapping[str, str]] = {
    USAGE_LIMIT: "The agent’s usage limit is reached",
    CREDIT_EXHAUSTED: "The agent’s account has no credit left",
    **{trouble: sentence.removesuffix(".") for trouble, sentence in TROUBLE_SENTENCES.items()},
}
"""Why a session is suspended, in words."""
_LIMIT_LABELS: Final = {
    USAGE_LIMIT: Label("Usage limit", "ask"),
    CREDIT_EXHAUSTED: Label("No credit", "ask"),
}


def headline(reason: str) -> str:
    """Return why a session is suspended; a reason that another version wrote is named as it is."""
    if not reason:
        return "The session is suspended"
    return HEADLINES.get(reason) or f"The agent’s turn has ended with an error that passes: {humanize_code(reason)}"


def suspension_label(reason: str) -> Label:
    """Return why a session is suspended, in a word."""
    if is_outage(reason):
        return Label("Provider error", "ask")
    return _LIMIT_LABELS.get(reason, LABELS[Code.SUSPENDED])


def cut_off_sentence(reason: str) -> str:
    """Say what has ended a turn that nothing continues, after its suspension."""
    if reason == CREDIT_EXHAUSTED:
        return "The last turn ended because the agent’s account had no credit left."
    if is_outage(reason):
        return "The last turn ended with an error of the model’s provider."
    return "The last turn was ended by a limit that is over."


def is_outage(reason: str) -> bool:
    """Whether the reason of a suspension is an outage of the provider, whose end nobody knows."""
    return reason in TROUBLE_SENTENCES


def try_delay(tries: int) -> timedelta:
    """Return the delay before the next try during an outage, after ``tries`` that have failed."""
    return TRY_DELAYS[min(tries, len(TRY_DELAYS) - 1)]


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
    AGENT = "agent"
    """The agent has said that it goes on by itself."""


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
    waits_by_itself: bool = False
    """Whether the agent has said that it waits, and goes on by itself."""
    is_outage: bool = False
    """Whether the provider was down: then it is tried like every turn that is retried after an error that may pass."""


def continuation(turn: CutOffTurn, windows: int, *, by_user: bool) -> Continuation:
    """Return what happens to a turn when its limit ends.

    Args:
        turn: the turn that the limit has ended.
        windows: after how many suspensions in a row work continues by itself; 0: never.
        by_user: somebody has asked for it, so that no policy is needed.
    """
    if not turn.has_prompt:
        return Continuation.NOTHING
    if turn.is_withdrawn and not by_user:
        return Continuation.WITHDRAWN
    if turn.waits_by_itself and not by_user:
        return Continuation.AGENT
    allowed = windows
    if turn.refuses_first and not turn.has_worked and not turn.is_outage:
        allowed = max(windows, 1)  # nothing can happen twice, so once is safe without a policy
    if not by_user and turn.windows >= allowed:
        return Continuation.NOTHING
    is_safe = turn.refuses_first or turn.is_outage or by_user
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
