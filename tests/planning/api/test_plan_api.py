"""Assignee, priority and labels in the API of tasks."""

from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from sessions_app.models import Task
from tests.api.world import World


def address(world: World) -> str:
    return f"/api/v1/tasks/{world.task.id}/"


def test_plan_of_a_task_is_changed_and_returned(world: World, api: APIClient) -> None:
    assert api.get(address(world)).json().items() >= {"assignee": None, "priority": "none", "labels": []}.items()
    wanted = {"assignee": world.member.username, "priority": "urgent", "labels": ["bug", "parser"]}
    assert api.patch(address(world), wanted, format="json").json().items() >= wanted.items()
    answer = api.patch(address(world), {"assignee": None, "priority": "none"}, format="json").json()
    assert answer.items() >= {"assignee": None, "priority": "none", "labels": ["bug", "parser"]}.items()


@pytest.mark.parametrize(
    "change",
    [
        {"assignee": "nobody"},
        {"priority": "9"},
        {"labels": ["x" * 41]},
        {"labels": ["a,b"]},
        {"labels": [str(number) for number in range(11)]},
        {"labels": "bug"},
    ],
)
def test_plan_that_is_not_allowed_changes_nothing_else(change: dict[str, object], world: World, api: APIClient) -> None:
    answer = api.patch(address(world), {"title": "Another", **change}, format="json")
    assert answer.status_code in (400, 422), answer.content
    assert Task.objects.get(id=world.task.id).title == world.task.title
