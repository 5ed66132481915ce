"""Who does a task, how urgent it is and its labels: changed on a page of its own, shown and filtered on the board."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from sessions_app.models import Task, TaskLabel
from sessions_app.planning.rules.plans import Priority
from sessions_app.planning.services import Plan, change_plan, plan_of
from tests.pages.world import World

pytestmark = pytest.mark.django_db


def plan(task: Task) -> Plan:
    return plan_of(Task.objects.get(id=task.id))


def save(browser: Client, task: Task, **values: Any) -> Any:
    form = {"plan-assignee": "", "plan-priority": "0", "plan-labels": "", **values}
    return browser.post(f"/tasks/{task.id}/plan/", form)


def test_plan_is_changed_on_its_page_and_shown_on_task_and_board(world: World, ada: Client) -> None:
    task = world.task()
    assert f'href="/tasks/{task.id}/plan/"' in ada.get(f"/tasks/{task.id}/").text
    values = {"plan-assignee": world.ada.pk, "plan-priority": "3", "plan-labels": "Bug, parser, bug"}
    assert save(ada, task, **values).status_code == 302
    assert plan(task) == Plan(world.ada, Priority.HIGH, ["Bug", "parser"])
    for page in ("/", f"/tasks/{task.id}/"):
        html = ada.get(page).text
        assert '<span class="pill ask">High</span>' in html
        assert '<span class="pill label">parser</span>' in html
        assert "@ada" in html
    assert 'value="Bug, parser"' in ada.get(f"/tasks/{task.id}/plan/").text
    save(ada, task)
    assert plan(task) == Plan(None, Priority.NONE, [])


@pytest.mark.parametrize(
    ("field", "value"),
    [("plan-priority", "9"), ("plan-labels", ",".join(map(str, range(11)))), ("plan-labels", "x" * 41)],
)
def test_value_that_is_not_allowed_changes_nothing(field: str, value: str, world: World, ada: Client) -> None:
    task = world.task()
    change_plan(task, {"labels": ["bug"]})
    assert save(ada, task, **{field: value}).status_code == 422
    assert plan(task) == Plan(None, Priority.NONE, ["bug"])


@pytest.mark.parametrize("stranger", ["of another team", "inactive"])
def test_only_active_members_of_the_team_are_assigned(stranger: str, world: World, ada: Client) -> None:
    task, user = world.task(), world.bob
    if stranger == "inactive":
        user = User.objects.create(username="gone", is_active=False)
        user.groups.add(world.team)
    assert save(ada, task, **{"plan-assignee": user.pk}).status_code == 422
    assert plan(task).assignee is None
    assert user.username not in ada.get(f"/tasks/{task.id}/plan/").text


def test_stranger_finds_no_plan(world: World, bob: Client) -> None:
    task = world.task()
    assert bob.get(f"/tasks/{task.id}/plan/").status_code == 404
    assert save(bob, task, **{"plan-labels": "mine"}).status_code == 404
    assert not TaskLabel.objects.exists()


def test_label_is_shown_as_text(world: World, ada: Client) -> None:
    task = world.task()
    change_plan(task, {"labels": ["<b>bold</b>"]})
    html = ada.get("/").text
    assert "&lt;b&gt;bold&lt;/b&gt;" in html
    assert "<b>bold</b>" not in html


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ("assignee=ada", ["urgent"]),
        ("assignee=bob", []),
        ("label=BUG", ["urgent", "low"]),
        ("label=other", []),
        ("priority=low", ["urgent", "low"]),
        ("priority=high", ["urgent"]),
        ("priority=nonsense", ["urgent", "low", "none"]),
        ("priority=high&label=bug&assignee=ada", ["urgent"]),
    ],
)
def test_board_shows_the_tasks_of_a_plan(query: str, titles: list[str], world: World, ada: Client) -> None:
    urgent, low, _ = (world.task(title=f"task {name}") for name in ("urgent", "low", "none"))
    change_plan(urgent, {"assignee": world.ada, "priority": Priority.URGENT, "labels": ["bug"]})
    change_plan(low, {"priority": Priority.LOW, "labels": ["Bug"]})
    html = ada.get(f"/?{query}").text
    shown = [name for name in ("urgent", "low", "none") if f">task {name}</a>" in html]
    assert shown == titles


def test_plan_goes_with_its_task(world: World) -> None:
    task = world.task()
    change_plan(task, {"priority": Priority.LOW, "labels": ["bug"]})
    task.delete()
    assert not TaskLabel.objects.exists()
    change_plan(task, {"labels": ["late"]})
    assert not TaskLabel.objects.exists(), "a task that was deleted meanwhile gets none"


def test_account_that_a_release_without_plans_has_deleted_is_nobody(world: World, ada: Client) -> None:
    task = world.task()
    gone = User.objects.create(username="gone")
    gone.groups.add(world.team)
    change_plan(task, {"assignee": gone, "priority": Priority.HIGH})
    gone.groups.clear()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM auth_user WHERE id = %s", [gone.pk])
    for page in ("/", f"/tasks/{task.id}/", f"/tasks/{task.id}/plan/", f"/api/v1/tasks/{task.id}/"):
        assert ada.get(page).status_code == 200, page
    assert plan(task) == Plan(None, Priority.HIGH, [])
