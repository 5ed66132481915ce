"""Whatever an agent reports to have used, sums, pages and budgets stay bounded and readable."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from sessions_app.models import TurnUsage, UsageBudget
from sessions_app.usage.models import budget_of_next_prompt, local_day
from tests.supervisor.journals import Journal
from tests.supervisor.rows import fresh
from tests.usage.test_models import run_turn, session_of

pytestmark = pytest.mark.django_db

NUMBERS: dict[str, Any] = {
    "negative": -1,
    "not a number": float("nan"),
    "infinite": float("inf"),
    "largest float": 1e308,
    "text": "5",
    "beyond a column": 2**63,
    "beyond a float": 10**400,
    "true": True,
    "null": None,
    "list": [5],
    "object": {"tokens": 5},
}
CURRENCIES: dict[str, Any] = {
    "one megabyte": "U" * 2**20,
    "small letters": "usd",
    "turned around": "US\u202e",
    "other letters": "ÄÖÜ",
    "number": 5,
    "object": {"code": "USD"},
    "with a line end": "USD\n",
}
AGENTS = ("openai_chat", "codex_cli", "claude_code")
"""Agent types whose figures count a turn, a conversation and a process."""


def page_of_usage(team_id: int) -> str:
    """Return the page as it is on the day on which the turns have ended."""
    TurnUsage.objects.update(day=local_day(timezone.now()))
    user = User.objects.create_superuser("staff")
    user.groups.add(team_id)
    client = Client()
    client.force_login(user)
    answer = client.get("/usage/")
    assert answer.status_code == 200
    return answer.text


@pytest.mark.parametrize("agent", AGENTS)
def test_figures_that_are_no_numbers_are_unknown(agent: str) -> None:
    session, journal = session_of(agent), Journal()
    for name, value in NUMBERS.items():
        figures = {"input_tokens": value, "output_tokens": value, "total_tokens": value, "used": value, "size": value}
        row = run_turn(session, journal, name, **figures, cost={"amount": value, "currency": "USD"})
        assert (row.tokens, row.input_tokens, row.output_tokens, row.cost, row.currency) == (None,) * 4 + ("",), name
    UsageBudget.objects.create(team=session.task.team, tokens=1, cost=1.0, currency="USD")
    assert budget_of_next_prompt(fresh(session)) is None
    assert f"Not reported in {len(NUMBERS)} turns" in page_of_usage(session.task.team_id)


@pytest.mark.parametrize("agent", AGENTS)
def test_currency_that_is_none_leaves_the_cost_unknown(agent: str) -> None:
    session, journal = session_of(agent), Journal()
    for name, value in CURRENCIES.items():
        row = run_turn(session, journal, name, cost={"amount": 1.0, "currency": value})
        assert (row.cost, row.currency) == (None, ""), name
    assert len(page_of_usage(session.task.team_id)) < 100_000


def test_most_that_turns_can_claim_is_summed_and_held_by_a_budget() -> None:
    session, journal = session_of(), Journal()
    most = 10**12 - 1
    for number in range(3):
        row = run_turn(session, journal, f"m{number}", prompt_tokens=most, completion_tokens=most)
        assert row.tokens == 2 * most
    UsageBudget.objects.create(session=session, tokens=10**12)
    hold = budget_of_next_prompt(fresh(session))
    assert hold is not None
    assert hold.used == f"{6 * most:,} tokens"
    assert f"{6 * most:,} tokens" in page_of_usage(session.task.team_id)


@pytest.mark.parametrize("agent", ["codex_cli", "claude_code"])
def test_counter_that_goes_up_and_down_is_never_counted_below_zero(agent: str) -> None:
    session, journal = session_of(agent), Journal()
    for number, amount in enumerate((10, 4, 12, 0, 12, 12, 1)):
        figures = {"input_tokens": amount, "output_tokens": 10 - amount if amount <= 10 else 0}
        run_turn(session, journal, f"m{number}", **figures, cost={"amount": float(amount), "currency": "USD"})
    for row in TurnUsage.objects.all():
        assert all(figure is None or figure >= 0 for figure in (row.tokens, row.input_tokens, row.cost))
