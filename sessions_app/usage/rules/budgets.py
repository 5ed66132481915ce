"""Whether a budget allows another prompt (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import NoneType
from typing import Any, Final

from sessions_app.kernel.rules.wording import count_text, money_text
from sessions_app.usage.rules.figures import CURRENCY


class BudgetScope(StrEnum):
    """What a budget is for."""

    SESSION = "session"
    """All turns of one session."""
    TEAM = "team"
    """All turns of a team that end on one day."""


class HoldReason(StrEnum):
    """Why a budget holds a prompt back."""

    USED_UP = "used_up"
    RUNNING = "running"
    """Turns that run already may use up the rest."""


class HoldEnd(StrEnum):
    """How a hold ended."""

    ALLOWED = "allowed"
    """The budget was raised or removed, its day is over, or the turns that ran have left something."""
    REPLACED = "replaced"
    """Another budget, or the same one for another reason, holds the prompt now."""
    OBSOLETE = "obsolete"
    """No prompt waits, or the session is not to run."""


MOST_TOKENS: Final = 10**15
MOST_COST: Final = 10**9
"""The largest limits of a budget."""


@dataclass(frozen=True, slots=True)
class Limits:
    """A budget. A limit that is None does not exist; 0 allows nothing."""

    tokens: int | None = None
    cost: float | None = None
    currency: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether it limits nothing."""
        return self.tokens is None and self.cost is None


@dataclass(frozen=True, slots=True)
class LimitsProblem:
    """What is wrong with a budget."""

    field: str
    sentence: str


def limits_problem(limits: Limits) -> LimitsProblem | None:
    """Return what is wrong with a budget; None if it is valid."""
    if limits.tokens is not None and not 0 <= limits.tokens <= MOST_TOKENS:
        return LimitsProblem("tokens", f"tokens must be a number from 0 to {MOST_TOKENS:,}.")
    if limits.cost is not None and not 0 <= limits.cost <= MOST_COST:
        return LimitsProblem("cost", f"cost must be a number from 0 to {MOST_COST:,}.")
    if limits.cost is not None and not CURRENCY.fullmatch(limits.currency):
        return LimitsProblem("currency", "currency must be the code of a currency, such as USD.")
    if limits.cost is None and limits.currency:
        return LimitsProblem("cost", "A currency needs a cost.")
    return None


def limits_from_stored(stored: Mapping[str, Any]) -> Limits:
    """Return a budget as another installation has stored it. Raises ValueError if it is none."""
    tokens, cost, currency = stored.get("tokens"), stored.get("cost"), stored.get("currency")
    if type(tokens) not in (int, NoneType) or type(cost) not in (int, float, NoneType) or not isinstance(currency, str):
        raise ValueError("no budget")
    limits = Limits(tokens, cost, currency)
    if limits_problem(limits):
        raise ValueError("no valid budget")
    return limits


@dataclass(frozen=True, slots=True)
class Spent:
    """What was used of a budget, as far as agents report it."""

    tokens: int = 0
    costs: Mapping[str, float] = field(default_factory=dict)
    """By currency."""
    running: int = 0
    """Turns that run now and whose figures are not known yet."""
    largest_tokens: int = 0
    """Of the turns that are counted, the most tokens of one."""
    largest_costs: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hold:
    """Why the next prompt has to wait."""

    scope: BudgetScope
    reason: HoldReason
    limit: str
    """The budget in words: *1,000 tokens*."""
    used: str


def find_hold(scope: BudgetScope, limits: Limits, spent: Spent) -> Hold | None:
    """Return why a budget holds the next prompt back; None if it does not.

    A prompt may begin while anything is left of the budget. Each turn that runs already is expected to use as much as
    the largest one before, so that near the end of a budget turns begin one after the other.
    """
    if limits.tokens is not None:
        expected = spent.tokens + spent.running * spent.largest_tokens
        if reason := _reason(spent.tokens, expected, limits.tokens):
            return Hold(scope, reason, count_text(limits.tokens, "token"), count_text(spent.tokens, "token"))
    if limits.cost is not None:
        cost = spent.costs.get(limits.currency, 0.0)
        expected_cost = cost + spent.running * spent.largest_costs.get(limits.currency, 0.0)
        if reason := _reason(cost, expected_cost, limits.cost):
            return Hold(scope, reason, money_text(limits.cost, limits.currency), money_text(cost, limits.currency))
    return None


def _reason(used: float, expected: float, limit: float) -> HoldReason | None:
    if used >= limit:
        return HoldReason.USED_UP
    if expected >= limit:
        return HoldReason.RUNNING
    return None


def hold_sentence(scope: str, reason: str, limit: str, used: str) -> str:
    """Say which budget holds prompts back."""
    whose = "this session’s budget" if scope == BudgetScope.SESSION else "the team’s budget for today"
    if reason == HoldReason.RUNNING:
        return (
            f"Turns that run now may use up the rest of {whose} of {limit}; used when it held the prompt back: {used}."
        )
    return f"{whose[0].upper()}{whose[1:]} of {limit} is used up; used when it held the prompt back: {used}."


def hold_end_sentence(scope: str, reason: str) -> str:
    """Say what ends a hold, and who can end it."""
    if reason == HoldReason.RUNNING:
        return "The prompt is sent when these turns have ended, if they leave anything."
    if scope == BudgetScope.SESSION:
        return "It does not renew: only raising or removing it lets the prompt go."
    return "It renews at midnight, UTC. Staff and the team’s admins can raise it before."


def limits_text(limits: Limits) -> str:
    """Return a budget in words; empty if it limits nothing."""
    parts = []
    if limits.tokens is not None:
        parts.append(count_text(limits.tokens, "token"))
    if limits.cost is not None:
        parts.append(money_text(limits.cost, limits.currency))
    return " and ".join(parts)
