"""What a resume costs: what is known before it, and what the agent reports of the first turn after it (pure).

Nothing here is computed from a price list, and no text is counted by a tokenizer: each agent has its own. Figures are
those that the agent has reported, and what it has not reported is unknown. The one estimate, that of a history, is
named as an estimate with its basis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sessions_app.kernel.rules.wording import plural
from sessions_app.recovery.rules.history import BUDGET_CHARS, BYTES_PER_TOKEN, Injection
from sessions_app.recovery.rules.resumability import Strategy
from sessions_app.recovery.rules.verification import ReceiptKind

COSTLY_KINDS: Final = frozenset({ReceiptKind.LOADED, ReceiptKind.RESUMED, ReceiptKind.INJECTED})
"""Receipts after which a model reads again what it or another process had read before."""

REPORTED_FIGURES: Final[Mapping[str, tuple[str, str]]] = {
    "input_tokens": ("1 input token", "{:,} input tokens"),
    "cached_tokens": ("1 token read from a cache", "{:,} tokens read from a cache"),
    "cache_write_tokens": ("1 token written to a cache", "{:,} tokens written to a cache"),
    "output_tokens": ("1 output token", "{:,} output tokens"),
}
"""The figures of a turn that say what it cost, in the words of a receipt."""


@dataclass(frozen=True, slots=True)
class ReportedContext:
    """The size of a conversation when its agent last reported it, in tokens."""

    used: int
    size: int | None
    """The size of the model's context window; None: not reported."""
    at: datetime | None
    """The end of the turn in which it was reported; None: the turn has not ended."""


@dataclass(frozen=True, slots=True)
class ResumeCost:
    """What is known of the cost of a resume before it; None is unknown."""

    strategy: Strategy
    context: ReportedContext | None = None
    history_characters: int | None = None
    history_estimated_tokens: int | None = None
    last_turn_ended_at: datetime | None = None
    """After a pause, a provider may no longer have the conversation in its cache."""


def last_reported_context(turns: Iterable[tuple[Mapping[str, Any] | None, datetime | None]]) -> ReportedContext | None:
    """Return the newest report of a context among turns, newest first, each with its figures and its end."""
    for usage, ended_at in turns:
        if usage and "context_used" in usage:
            return ReportedContext(usage["context_used"], usage.get("context_size"), ended_at)
    return None


def cost_of(
    strategy: Strategy,
    *,
    context: ReportedContext | None,
    history: Injection | None,
    last_turn_ended_at: datetime | None,
) -> ResumeCost:
    """Return what a resume by ``strategy`` costs; ``history`` is None if it is not built yet or is not told."""
    if strategy is Strategy.NATIVE:
        return ResumeCost(strategy, context=context, last_turn_ended_at=last_turn_ended_at)
    if strategy is Strategy.HISTORY and history is not None:
        return ResumeCost(
            strategy,
            history_characters=len(history.text),
            history_estimated_tokens=history.estimated_tokens,
            last_turn_ended_at=last_turn_ended_at,
        )
    return ResumeCost(strategy, last_turn_ended_at=last_turn_ended_at)


def cost_sentence(cost: ResumeCost) -> str:
    """Return what the model will read because of the resume."""
    if cost.strategy is Strategy.NATIVE:
        return _context_sentence(cost.context)
    if cost.strategy is Strategy.HISTORY:
        return _history_sentence(cost)
    return "The agent starts a new conversation and reads nothing of the old one."


def _context_sentence(context: ReportedContext | None) -> str:
    loads = "The agent loads its conversation, and the model reads the whole of it again with the next prompt"
    if context is None:
        return f"{loads}. How many tokens that costs is unknown: the agent has reported no size."
    tokens = plural(context.used, "1 token", "{:,} tokens")
    return f"{loads}: {tokens} when the agent last reported its size."


def _history_sentence(cost: ResumeCost) -> str:
    if cost.history_characters is None:
        return (
            f"A new conversation gets the old one with the next prompt, in at most {BUDGET_CHARS:,} characters. "
            "How many tokens that costs is unknown."
        )
    characters = plural(cost.history_characters, "1 character", "{:,} characters")
    estimate = f"{cost.history_estimated_tokens:,} at {BYTES_PER_TOKEN} bytes for a token"
    return (
        f"A new conversation gets the old one with the next prompt, in {characters}. "
        f"How many tokens that costs is unknown; an estimate is {estimate}."
    )


def usage_sentence(usage: Mapping[str, Any] | None) -> str:
    """Return the tokens that an agent has reported of a turn."""
    figures = usage or {}
    known = [plural(figures[name], *words) for name, words in REPORTED_FIGURES.items() if name in figures]
    if known:
        return ", ".join(known)
    if "total_tokens" in figures:
        return plural(figures["total_tokens"], "1 token", "{:,} tokens")
    return "unknown: the agent has reported no tokens"
