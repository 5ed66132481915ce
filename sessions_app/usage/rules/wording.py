"""Usage in words: what is known, and for how many turns nothing is (pure)."""

from __future__ import annotations

from typing import Final

from sessions_app.kernel.rules.wording import count_text, money_text, plural
from sessions_app.usage.rules.figures import Usage

MOST_CURRENCIES: Final = 5
"""Currencies of a sum that are shown: an agent can report any three letters."""
UNKNOWN_TOKENS: Final = "Not reported"


def tokens_text(usage: Usage) -> str:
    """Return the number of tokens in words; it is not zero just because no turn has reported any."""
    if usage.turns == 0:
        return "0 tokens"
    if usage.turns_without_tokens == usage.turns:
        return UNKNOWN_TOKENS
    return count_text(usage.tokens, "token")


def cost_text(usage: Usage) -> str:
    """Return the cost in each currency, of many in some; empty if no turn has reported any."""
    parts = [money_text(cost, currency) for currency, cost in usage.costs[:MOST_CURRENCIES]]
    more = len(usage.costs) - MOST_CURRENCIES
    if more > 0:
        parts.append(plural(more, "1 other currency", "{:,} other currencies"))
    return ", ".join(parts)


def missing_text(usage: Usage) -> str:
    """Return for how many turns a sum lacks their figures; empty if it lacks none, or if there is no sum."""
    found = []
    if 0 < usage.turns_without_tokens < usage.turns:
        found.append(f"{_turns(usage.turns_without_tokens)} without tokens")
    if 0 < usage.turns_without_cost < usage.turns:
        found.append(f"{_turns(usage.turns_without_cost)} without a cost")
    return ", ".join(found)


def summary_text(usage: Usage) -> str:
    """Return a sum in one sentence, such as *12 tokens, 0.40 USD in 3 turns (1 turn without tokens)*."""
    known = ", ".join(filter(None, (tokens_text(usage), cost_text(usage))))
    missing = missing_text(usage)
    text = f"{known} in {_turns(usage.turns)}"
    if missing:
        text += f" ({missing})"
    return text


def usage_summary(usage: Usage) -> str:
    """Return a sum in one sentence; empty if no turn has ended."""
    if usage.turns == 0:
        return ""
    return summary_text(usage)


def _turns(number: int) -> str:
    return count_text(number, "turn")
