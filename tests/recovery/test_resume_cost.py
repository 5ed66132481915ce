"""What is said about the cost of a resume, before and after it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sessions_app.recovery.rules.history import Injection
from sessions_app.recovery.rules.resumability import Strategy
from sessions_app.recovery.rules.resume_cost import (
    ReportedContext,
    cost_of,
    cost_sentence,
    last_reported_context,
    usage_sentence,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
CONTEXT = ReportedContext(62_310, 200_000, NOON)
HISTORY = Injection("x" * 4_000, estimated_tokens=1_000, told=3)


@pytest.mark.parametrize(
    ("strategy", "context", "history", "says"),
    [
        (Strategy.NATIVE, CONTEXT, None, "62,310 tokens when the agent last reported its size."),
        (Strategy.NATIVE, None, None, "How many tokens that costs is unknown: the agent has reported no size."),
        (Strategy.HISTORY, CONTEXT, HISTORY, "in 4,000 characters. How many tokens that costs is unknown; an estimate"),
        (Strategy.HISTORY, None, HISTORY, "an estimate is 1,000 at 4 bytes for a token."),
        (Strategy.HISTORY, None, None, "in at most 60,000 characters. How many tokens that costs is unknown."),
        (Strategy.FRESH, CONTEXT, HISTORY, "reads nothing of the old one."),
    ],
)
def test_cost_is_what_the_agent_reported_and_else_unknown(
    strategy: Strategy, context: ReportedContext | None, history: Injection | None, says: str
) -> None:
    cost = cost_of(strategy, context=context, history=history, last_turn_ended_at=NOON)
    assert says in cost_sentence(cost)
    assert (cost.context is not None) is (strategy is Strategy.NATIVE and context is not None)
    assert cost.last_turn_ended_at == NOON


@pytest.mark.parametrize(
    ("turns", "used"),
    [
        ([], None),
        ([(None, NOON), ({}, NOON)], None),
        ([({"input_tokens": 5}, NOON)], None),
        ([({"input_tokens": 5}, None), ({"context_used": 7, "context_size": 9}, NOON)], 7),
        ([({"context_used": 0}, NOON), ({"context_used": 7}, NOON)], 0),
    ],
)
def test_newest_report_of_the_context_counts(turns: list[Any], used: int | None) -> None:
    found = last_reported_context(turns)
    assert (found.used if found else None) == used


@pytest.mark.parametrize(
    ("usage", "says"),
    [
        (None, "unknown: the agent has reported no tokens"),
        ({"cost": 1.0, "currency": "USD"}, "unknown: the agent has reported no tokens"),
        ({"total_tokens": 1200}, "1,200 tokens"),
        ({"input_tokens": 12, "total_tokens": 14}, "12 input tokens"),
        (
            {"input_tokens": 12, "cached_tokens": 0, "cache_write_tokens": 52_000, "output_tokens": 3},
            "12 input tokens, 0 tokens read from a cache, 52,000 tokens written to a cache, 3 output tokens",
        ),
    ],
)
def test_cost_of_a_turn_names_only_reported_figures(usage: Any, says: str) -> None:
    assert usage_sentence(usage) == says
