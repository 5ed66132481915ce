"""A task is created with a base branch and edited on a phone, without scripts."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from sessions_app.models import Task
from tests.pages.browsers import navigating
from tests.pages.world import World

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_task_is_created_edited_and_deleted_on_a_phone_without_javascript(visit: Any, world: World) -> None:
    page = visit(java_script_enabled=False, viewport={"width": 390, "height": 700}).open("/")
    page.get_by_label("Title").fill("Paint the bridge")
    page.get_by_label("Base branch").fill("release/1.0")
    with navigating(page):
        page.get_by_role("button", name="Create without starting").click()
    assert Task.objects.get().base_branch == "release/1.0"
    with navigating(page):
        page.get_by_role("link", name="Edit title and text").click()
    page.get_by_label("Title").fill("Paint both bridges")
    page.get_by_label("Description").fill("Blue.")
    with navigating(page):
        page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="Paint both bridges")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    with navigating(page):
        page.get_by_role("link", name="Delete…").click()
    with navigating(page):
        page.get_by_role("button", name="Delete the task").click()
    expect(page.get_by_text("The task “Paint both bridges” was deleted.")).to_be_visible()
    assert not Task.objects.exists()
