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
