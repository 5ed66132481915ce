"""*Show more* of a column leads to the tasks that it adds, and takes the focus from nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from sessions_app.board.services.board import TASKS_PER_COLUMN
from sessions_app.models import Task
from tests.pages.browsers import NO_SOCKET
from tests.pages.world import World

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def add_tasks(world: World, count: int) -> None:
    place = {"team": world.team, "repository": world.repository, "created_by": world.ada}
    Task.objects.bulk_create(Task(title=f"Task {number}", **place) for number in range(count))


def cards(page: Page) -> Any:
    return page.locator('.column[data-state="TODO"] .task')


def test_first_added_task_gets_the_focus(visit: Any, world: World) -> None:
    add_tasks(world, TASKS_PER_COLUMN + 2)
    ada = visit()
    page = ada.open("/")
    page.get_by_role("link", name="Show more tasks: To do").press("Enter")
    expect(cards(page)).to_have_count(TASKS_PER_COLUMN + 2)
    expect(cards(page).nth(TASKS_PER_COLUMN).locator(".title")).to_be_focused()
    assert ada.unexpected(*NO_SOCKET) == []


def test_focus_stays_where_the_user_has_gone_meanwhile(visit: Any, world: World) -> None:
    add_tasks(world, TASKS_PER_COLUMN + 2)
    ada = visit()
    page = ada.open("/")
    page.evaluate(
        """() => {
            document.querySelector(".show-more").click();
            document.getElementById("filter-q").focus();
        }"""
    )
    expect(cards(page)).to_have_count(TASKS_PER_COLUMN + 2)
    expect(page.get_by_role("searchbox", name="Search")).to_be_focused()
    assert ada.unexpected(*NO_SOCKET) == []
