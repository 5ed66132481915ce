"""What one turn alone has used, from the figures that its agent reported (pure)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from executors_app.agents import Coverage, UsageReport

_TOKENS: Final = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "total_tokens")
_FIGURES: Final = (*_TOKENS, "cost")
_MOST: Final = 10**12
"""A turn that has used more was not reported truthfully; the sum of all turns has to fit into a database's number."""
CURRENCY: Final = re.compile(r"[A-Z]{3}")
"""The code of a currency, such as ``USD``."""


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """What a turn has used. A figure that is None is not known."""

    tokens: int | None = None
    """All tokens, with those of a cache."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    """Those that were read from a cache."""
    cost: float | None = None
    currency: str = ""

    def known(self) -> dict[str, Any]:
        """Return the figures that are known."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in found.items() if value is not None and value != ""}

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> TurnFigures:
        """Return the figures of ``known`` as another installation has stored them; what is invalid is left out."""
        counts = {name: stored[name] for name in cls.__slots__[:4] if _is_count(stored.get(name))}
        cost: Any = stored.get("cost")
        currency = _currency(stored.get("currency"))
        if currency and type(cost) in (int, float) and 0 <= cost < _MOST:
            return cls(**counts, cost=float(cost), currency=currency)
        return cls(**counts)


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < _MOST


def _currency(reported: Any) -> str:
    """Return the code of a currency, such as ``USD``; empty for anything else."""
    if isinstance(reported, str) and CURRENCY.fullmatch(reported):
        return reported
    return ""


@dataclass(frozen=True, slots=True)
class Earlier:
    """What the agent had last reported before the turn."""

    figures: Mapping[str, Any] | None
    """Empty: it has reported nothing; None: not known."""
    same_process: bool = True
    """Whether the same process of the agent reports now."""
    same_conversation: bool = True
    """Whether it continues the same conversation."""


FIRST_TURN: Final = Earlier({})


def turn_figures(reported: Mapping[str, Any], declared: UsageReport, earlier: Earlier = FIRST_TURN) -> TurnFigures:
    """Return what a turn alone has used.

    Args:
        reported: the figures of the turn as ``parse_usage`` returns them.
        declared: what the figures of this agent type count.
        earlier: what the agent had reported before; it matters only for figures that count more than a turn.
    """
    counts = _own(_TOKENS, reported, declared.tokens, earlier)
    counts = {name: count for name, count in counts.items() if _is_count(count)}
    cost = None
    currency = _currency(reported.get("currency"))
    if currency and _is_same_currency(currency, earlier, declared.cost):
        cost = _own(("cost",), reported, declared.cost, earlier).get("cost")
    return TurnFigures(
        tokens=_all_tokens(counts, input_has_cached=declared.input_has_cached),
        input_tokens=counts.get("input_tokens"),
        output_tokens=counts.get("output_tokens"),
        cached_tokens=counts.get("cached_tokens"),
        cost=cost,
        currency=currency if cost is not None else "",
    )


def _is_same_currency(currency: str, earlier: Earlier, coverage: Coverage) -> bool:
    if coverage is Coverage.TURN or not earlier.figures or "cost" not in earlier.figures:
        return True
    return bool(earlier.figures.get("currency") == currency)


def _own(names: tuple[str, ...], reported: Mapping[str, Any], coverage: Coverage, earlier: Earlier) -> dict[str, Any]:
    """Return those of the figures that the turn alone has added; empty if they cannot be told apart."""
    now = {name: reported[name] for name in names if name in reported}
    if coverage is Coverage.TURN:
        return now
    before = _baseline(now, coverage, earlier)
    if before is None:
        return {}
    if _began_anew(now, before):
        return now
    return {name: value - before.get(name, 0) for name, value in now.items()}


def _baseline(now: Mapping[str, Any], coverage: Coverage, earlier: Earlier) -> Mapping[str, Any] | None:
    """Return what the figures counted before the turn; None if that is not known."""
    if coverage is Coverage.UNKNOWN or earlier.figures is None:
        return None
    if coverage is Coverage.CONVERSATION:
        return earlier.figures if earlier.same_conversation else {}
    counted_before = any(earlier.figures.get(name) for name in now)
    if earlier.same_process or not counted_before or _began_anew(now, earlier.figures):
        return earlier.figures
    return None  # the new process may have begun with what the one before had counted, or with nothing


def _began_anew(now: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether a figure is smaller than before, so that all of them count from a later beginning."""
    return any(value < before.get(name, 0) for name, value in now.items())


def _all_tokens(counts: Mapping[str, int], *, input_has_cached: bool) -> int | None:
    if "total_tokens" in counts:
        return counts["total_tokens"]
    if "input_tokens" not in counts or "output_tokens" not in counts:
        return None
    total = counts["input_tokens"] + counts["output_tokens"]
    if input_has_cached:
        return total
    return total + counts.get("cached_tokens", 0) + counts.get("cache_write_tokens", 0)


def last_figures(reported: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of the agent's counters after a turn: a figure that it did not report keeps its value."""
    return {name: value for name, value in {**before, **reported}.items() if name in _FIGURES or name == "currency"}


@dataclass(frozen=True, slots=True)
class Usage:
    """The sum of turns, and for how many of them figures are missing."""

    turns: int = 0
    turns_without_tokens: int = 0
    turns_without_cost: int = 0
    tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    costs: tuple[tuple[str, float], ...] = ()
    """The cost in each currency, by its name."""


def add_usage(parts: list[Usage]) -> Usage:
    """Return the sum; costs in different currencies stay apart."""
    costs: dict[str, list[float]] = {}
    for part in parts:
        for currency, cost in part.costs:
            costs.setdefault(currency, []).append(cost)
    counts = {name: sum(getattr(part, name) for part in parts) for name in Usage.__slots__ if name != "costs"}
    return Usage(**counts, costs=tuple((name, math.fsum(found)) for name, found in sorted(costs.items())))
