"""Tasks are selected on the board with mouse, keyboard and on a phone, and changed together."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from sessions_app.finish import unfinished
from sessions_app.finish.services import Uncommitted
from sessions_app.models import Task, TaskSession
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import NO_SOCKET, navigating
from tests.pages.world import World

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def box(page: Page, title: str) -> Any:
    return page.get_by_role("checkbox", name=f"Select the task {title}", exact=True)


def archived() -> set[str]:
    return set(Task.objects.exclude(archived_at=None).values_list("title", flat=True))


def test_tasks_are_selected_by_range_and_keys_and_changed_together(
    visit: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unfinished, "read_uncommitted", lambda session: Uncommitted(("src/a.py",), "f" * 40))
    tasks = [world.task(title) for title in ("Four", "Three", "Two", "One")]  # the newest is the first
    session = world.session()
    Task.objects.filter(id=session.task_id).update(title="With a branch")
    TaskSession.objects.filter(id=session.id).update(worktree_branch="kandev/one")
    ada = visit()
    page = ada.open("/")
    chosen = page.get_by_role("form", name="Selected tasks")
    expect(chosen).to_be_hidden()
    box(page, "One").click()
    expect(chosen).to_contain_text("1 task selected")
    box(page, "Three").click(modifiers=["Shift"])
    expect(chosen).to_contain_text("3 tasks selected")
    expect(box(page, "Two")).to_be_checked()
    page.get_by_role("link", name="Two", exact=True).focus()
    page.keyboard.press("t")
    expect(box(page, "Two")).not_to_be_checked()
    page.get_by_role("link", name="Four", exact=True).focus()
    page.keyboard.press("t")
    page.get_by_role("link", name="With a branch", exact=True).focus()
    page.keyboard.press("T")
    expect(chosen).to_contain_text("5 tasks selected")
    Task.objects.filter(id=tasks[0].id).update(title="Changed meanwhile")
    expect(page.get_by_role("link", name="Changed meanwhile", exact=True)).to_be_visible()
    expect(chosen).to_contain_text("5 tasks selected")
    with navigating(page):
        chosen.get_by_role("button", name="Archive").click()
    expect(page.get_by_role("heading", name="Archive: 5 tasks")).to_be_visible()
    expect(page.get_by_text("1 file with uncommitted changes")).to_be_visible()
    assert accessibility_problems(page) == []
    ada.complaints.clear()  # axe tries styles that the content security policy blocks
    assert archived() == set()
    page.get_by_role("checkbox", name="With a branch").uncheck()
    with navigating(page):
        page.get_by_role("button", name="Archive anyway").click()
    expect(page.get_by_text("4 tasks were archived.")).to_be_visible()
    assert archived() == {"Changed meanwhile", "Three", "Two", "One"}
    assert ada.unexpected(*NO_SOCKET) == []


def test_tasks_are_selected_and_changed_without_javascript_on_a_phone(visit: Any, world: World) -> None:
    world.task("One")
    page = visit(java_script_enabled=False, viewport={"width": 390, "height": 700}).open("/")
    box(page, "One").check()
    with navigating(page):
        page.get_by_role("form", name="Selected tasks").get_by_role("button", name="Mark as done").click()
    expect(page.get_by_text("1 task was marked as done.")).to_be_visible()
    assert Task.objects.get().state == "DONE"
