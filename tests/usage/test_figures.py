"""What one turn has used follows from what its agent reports, and from what that counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from executors_app.agents import Coverage, UsageReport
from sessions_app.usage.rules.figures import (
    FIRST_TURN,
    Earlier,
    TurnFigures,
    Usage,
    add_usage,
    last_figures,
    turn_figures,
)

TURN = UsageReport(tokens=Coverage.TURN, cost=Coverage.TURN)
CONVERSATION = UsageReport(tokens=Coverage.CONVERSATION, cost=Coverage.CONVERSATION, input_has_cached=True)
PROCESS = UsageReport(tokens=Coverage.TURN, cost=Coverage.PROCESS)
UNKNOWN = UsageReport()
TOLD = {"input_tokens": 10, "output_tokens": 2, "cached_tokens": 5}


@pytest.mark.parametrize(
    ("reported", "declared", "tokens"),
    [
        ({**TOLD, "total_tokens": 99}, TURN, 99),
        (TOLD, TURN, 17),
        ({**TOLD, "cache_write_tokens": 3}, TURN, 20),
        (TOLD, UsageReport(tokens=Coverage.TURN, input_has_cached=True), 12),
        ({"input_tokens": 10}, TURN, None),
        ({"context_used": 10, "context_size": 100}, TURN, None),
        ({}, TURN, None),
        (TOLD, UNKNOWN, None),
        ({**TOLD, "total_tokens": 10**13}, TURN, 17),
        ({**TOLD, "output_tokens": 10**13}, TURN, None),
    ],
)
def test_tokens_are_summed_only_if_all_are_known(
    reported: dict[str, Any], declared: UsageReport, tokens: int | None
) -> None:
    assert turn_figures(reported, declared).tokens == tokens


def test_turn_keeps_the_parts_that_the_agent_reports() -> None:
    found = turn_figures({**TOLD, "cost": 0.5, "currency": "USD", "context_used": 9}, TURN)
    assert found == TurnFigures(17, 10, 2, 5, 0.5, "USD")
    assert found.known() == {**TOLD, "tokens": 17, "cost": 0.5, "currency": "USD"}
    assert TurnFigures.from_stored(found.known()) == found
    assert TurnFigures().known() == {}


@pytest.mark.parametrize(
    ("stored", "found"),
    [
        ({"tokens": True, "input_tokens": -1, "output_tokens": "9", "cached_tokens": 10**40}, TurnFigures()),
        ({"tokens": 3, "cost": 1}, TurnFigures(tokens=3)),
        ({"cost": float("nan"), "currency": "USD"}, TurnFigures()),
        ({"cost": 1, "currency": "EUR"}, TurnFigures(cost=1.0, currency="EUR")),
        ({"cost": 1, "currency": "Euro" * 100}, TurnFigures()),
    ],
)
def test_figures_of_another_installation_are_checked(stored: dict[str, Any], found: TurnFigures) -> None:
    assert TurnFigures.from_stored(stored) == found


@pytest.mark.parametrize(
    ("now", "declared", "earlier", "own"),
    [
        (30, CONVERSATION, FIRST_TURN, 30),
        (30, CONVERSATION, Earlier({"cost": 20.0, "currency": "USD"}), 10),
        (30, CONVERSATION, Earlier({"cost": 20.0, "currency": "USD"}, same_process=False), 10),
        (30, CONVERSATION, Earlier({"cost": 20.0, "currency": "USD"}, same_conversation=False), 30),
        (5, CONVERSATION, Earlier({"cost": 20.0, "currency": "USD"}), 5),
        (30, CONVERSATION, Earlier(None), None),
        (30, PROCESS, Earlier({"cost": 20.0, "currency": "USD"}), 10),
        (5, PROCESS, Earlier({"cost": 20.0, "currency": "USD"}, same_process=False), 5),
        (30, PROCESS, Earlier({"cost": 20.0, "currency": "USD"}, same_process=False), None),
        (30, PROCESS, Earlier({}, same_process=False), 30),
        (30, PROCESS, Earlier(None), None),
        (30, TURN, Earlier(None), 30),
        (30, UNKNOWN, FIRST_TURN, None),
        (30, CONVERSATION, Earlier({"cost": 20.0, "currency": "EUR"}), None),
    ],
)
def test_cost_of_a_turn_is_what_it_adds_or_unknown(
    now: float, declared: UsageReport, earlier: Earlier, own: float | None
) -> None:
    found = turn_figures({"cost": now, "currency": "USD"}, declared, earlier)
    assert (found.cost, found.currency) == (own, "" if own is None else "USD")


@pytest.mark.parametrize("currency", ["", "usd", "Euros", "US", 3, None])
def test_cost_without_the_code_of_its_currency_is_unknown(currency: Any) -> None:
    assert turn_figures({"cost": 1.0, "currency": currency}, TURN).cost is None


def test_counter_that_begins_anew_counts_from_zero_in_all_its_figures() -> None:
    earlier = Earlier({"input_tokens": 100, "output_tokens": 1})
    found = turn_figures({"input_tokens": 10, "output_tokens": 3}, CONVERSATION, earlier)
    assert (found.tokens, found.input_tokens, found.output_tokens) == (13, 10, 3)


def test_counter_keeps_its_value_while_nothing_is_reported() -> None:
    before = {"input_tokens": 3, "cost": 1.0, "currency": "USD"}
    assert last_figures({"context_used": 9}, before) == before
    assert last_figures({"input_tokens": 5, "size": 1}, before) == {**before, "input_tokens": 5}


def test_different_currencies_are_never_added() -> None:
    parts = [
        Usage(2, 1, 0, 10, 8, 2, 1, (("USD", 0.1), ("EUR", 2.0))),
        Usage(1, 0, 1, 5, costs=(("USD", 0.2),)),
    ]
    found = add_usage(parts)
    assert dict(found.costs) == {"EUR": 2.0, "USD": pytest.approx(0.3)}
    assert replace(found, costs=()) == Usage(3, 1, 1, 15, 8, 2, 1)
    assert add_usage([]) == Usage()
