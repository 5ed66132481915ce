"""Token counts and cost of a turn, read from the figures that agents report in different formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from sessions_app.kernel.rules.wording import count_text, money_text

_COUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    "input_tokens": ("input_tokens", "inputTokens", "prompt_tokens"),
    "output_tokens": ("output_tokens", "outputTokens", "completion_tokens"),
    "cached_tokens": ("cached_input_tokens", "cache_read_input_tokens", "cachedReadTokens"),
    "cache_write_tokens": ("cache_write_input_tokens", "cache_creation_input_tokens", "cachedWriteTokens"),
    "total_tokens": ("total_tokens", "totalTokens"),
    "context_used": ("used",),
    "context_size": ("size",),
}
"""Our name for each count, and the names that agents use for it."""
_MOST: Final = 10**15
"""Numbers from here on are not plausible as counts."""


def parse_usage(reported: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures we know: token counts, ``cost`` and its ``currency``. Anything invalid is left out."""
    found: dict[str, Any] = {}
    for ours, names in _COUNTS.items():
        count = next((reported[name] for name in names if name in reported), None)
        if _is_number(count):
            found[ours] = int(count)
    return found | _cost(reported)


def parse_stored_usage(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of ``parse_usage`` as another installation has stored them; what is invalid is left out."""
    counts = {name: int(stored[name]) for name in _COUNTS if _is_number(stored.get(name))}
    if not _is_number(stored.get("cost")):
        return counts
    return {**counts, "cost": float(stored["cost"]), "currency": str(stored.get("currency") or "USD")[:8]}


def _cost(reported: Mapping[str, Any]) -> dict[str, Any]:
    if _is_number(reported.get("total_cost_usd")):
        return {"cost": float(reported["total_cost_usd"]), "currency": "USD"}
    cost = reported.get("cost")
    if isinstance(cost, Mapping) and _is_number(cost.get("amount")):
        return {"cost": float(cost["amount"]), "currency": str(cost.get("currency") or "USD")[:8]}
    return {}


def _is_number(value: Any) -> TypeGuard[float]:
    # Not isinstance(): True and False are ints, too.
    return type(value) in (int, float) and 0 <= value < _MOST


def usage_lines(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the figures as pairs of label and value for people."""
    lines = [
        (words, f"{figures[name]:,}")
        for name, words in (("input_tokens", "Tokens in"), ("output_tokens", "Tokens out"), ("total_tokens", "Tokens"))
        if name in figures and not (name == "total_tokens" and "input_tokens" in figures)
    ]
    if figures.get("cached_tokens"):
        lines.append(("Tokens read from a cache", f"{figures['cached_tokens']:,}"))
    if figures.get("context_size"):
        used, size = figures.get("context_used", 0), figures["context_size"]
        lines.append(("Context in use", f"{used / size:.0%} of {count_text(size, 'token')}"))
    if "cost" in figures:
        lines.append(("Cost", money_text(figures["cost"], figures["currency"])))
    return lines
