"""The API sums usage as the page does."""

from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from tests.api.world import World, client_of
from tests.usage.ledger import used

pytestmark = pytest.mark.django_db


def test_report_has_each_day_and_each_currency(world: World, api: APIClient) -> None:
    used(world.task, tokens=10, input_tokens=8, output_tokens=2, cost=0.5, currency="USD", member=world.member)
    used(world.task, days_ago=1, cost=1.5, currency="EUR")
    report = api.get("/api/v1/usage/?days=7").json()
    assert report["total"] == {
        "turns": 2,
        "turns_without_tokens": 1,
        "turns_without_cost": 0,
        "tokens": 10,
        "input_tokens": 8,
        "output_tokens": 2,
        "cached_tokens": 0,
        "costs": [{"currency": "EUR", "amount": 1.5}, {"currency": "USD", "amount": 0.5}],
    }
    assert [day["usage"]["turns"] for day in report["days"]] == [0, 0, 0, 0, 0, 1, 1]
    assert (report["days"][0]["day"], report["days"][-1]["day"]) == (report["since"], report["until"])
    [task] = report["tasks"]
    assert (task["id"], task["name"]) == (str(world.task.id), world.task.title)
    assert [agent["name"] for agent in report["agents"]] == ["Demo agent"]
    assert {member["id"] for member in report["members"]} == {str(world.member.pk), None}


def test_report_of_a_team_or_task_contains_no_other(world: World, api: APIClient) -> None:
    used(world.task, tokens=10)
    stranger = client_of(world.stranger)
    for query in (f"team={world.team.pk}", f"task={world.task.id}", ""):
        assert api.get(f"/api/v1/usage/?{query}").json()["total"]["tokens"] == 10
        assert stranger.get(f"/api/v1/usage/?{query}").json()["total"]["tokens"] == 0


@pytest.mark.parametrize("query", ["days=8", "days=x", "team=0", "team=x", "task=x"])
def test_unknown_period_or_wrong_id_is_refused(query: str, world: World, api: APIClient) -> None:
    assert api.get(f"/api/v1/usage/?{query}").status_code == 400


def test_budget_of_a_session_is_read_and_replaced(world: World, api: APIClient) -> None:
    url = world.url("budget/")
    assert api.get(url).json() == {"tokens": None, "cost": None, "currency": ""}
    given = {"tokens": 1000, "cost": 2.5, "currency": "USD"}
    assert api.put(url, given, format="json").json() == given
    assert api.put(url, {"tokens": 0}, format="json").json() == {"tokens": 0, "cost": None, "currency": ""}
    assert api.get(url).json()["tokens"] == 0


@pytest.mark.parametrize(
    "body",
    [
        {"tokens": -1},
        {"tokens": "many"},
        {"cost": 1.0},
        {"cost": 1.0, "currency": "usd"},
        {"currency": "USD"},
        {"cost": 1e300, "currency": "USD"},
        {"token": 5},
    ],
)
def test_wrong_budgets_are_refused(body: dict[str, object], world: World, api: APIClient, staff: APIClient) -> None:
    assert api.put(world.url("budget/"), body, format="json").status_code == 400
    assert staff.put(f"/api/v1/teams/{world.team.pk}/budget/", body, format="json").status_code == 400


def test_budget_of_a_team_is_changed_by_those_who_manage_it(world: World, api: APIClient, staff: APIClient) -> None:
    url = f"/api/v1/teams/{world.team.pk}/budget/"
    assert api.put(url, {"tokens": 5}, format="json").status_code == 403
    assert staff.put(url, {"tokens": 5}, format="json").json()["tokens"] == 5
    assert api.get(url).json()["tokens"] == 5
