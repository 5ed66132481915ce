"""Moving tasks on the board in a real browser: by mouse, by finger and by keyboard."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, FloatRect, Locator, Page, expect

from sessions_app.board.views import moves as views
from sessions_app.finish.services import Uncommitted
from sessions_app.finish.unfinished import UnfinishedTask, UnfinishedWork
from sessions_app.models import Task
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import NO_SOCKET
from tests.pages.world import World, make_world, supervise
from tests.waiting import eventually

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
REFUSED = "status of 409"
IS_OVER = re.compile(r"\bover\b")


@pytest.fixture
def world(browser: Browser) -> World:
    supervise()
    return make_world()


def card(page: Page, title: str) -> Locator:
    return page.locator(".task:not(.ghost)", has=page.get_by_role("link", name=title, exact=True))


def column(page: Page, state: str) -> Locator:
    return page.locator(f'.column[data-state="{state}"]')


def in_column(page: Page, state: str, title: str) -> Locator:
    return column(page, state).get_by_role("link", name=title, exact=True)


def box_of(found: Locator) -> FloatRect:
    """Return where something is; an update of the page may replace it at any moment."""
    return eventually(found.bounding_box, describe="it is on the page") or FloatRect(x=0, y=0, width=0, height=0)


def take(page: Page, title: str) -> None:
    """Begin to drag a card at its title, and wait until it is dragged."""
    expect(page.locator("[aria-busy]")).to_have_count(0)
    box = box_of(in_column(page, "REVIEW", title))
    page.mouse.move(box["x"] + 4, box["y"] + 4)
    page.mouse.down()
    page.mouse.move(box["x"] + 30, box["y"] + 30)
    expect(page.locator(".ghost")).to_be_visible()


def carry_to(page: Page, state: str) -> None:
    box = box_of(column(page, state).get_by_role("heading"))
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    expect(column(page, state)).to_have_class(IS_OVER)


def review_task(world: World, title: str) -> Task:
    task = world.resting_session().task
    Task.objects.filter(id=task.id).update(title=title)
    return task


def test_task_is_dragged_to_another_column_while_the_board_updates(visit: Any, world: World) -> None:
    task, other = review_task(world, "Paint the bridge"), review_task(world, "Count the fish")
    ada = visit(viewport={"width": 1400, "height": 900})
    page = ada.open("/")
    said = page.locator("#moved")

    take(page, "Paint the bridge")
    Task.objects.filter(id=other.id).update(title="Count all fish")
    expect(in_column(page, "REVIEW", "Count all fish")).to_be_visible()
    expect(page.locator(".task.dragged")).to_have_count(1)
    carry_to(page, "DONE")
    page.mouse.up()
    expect(said).to_have_text("“Paint the bridge” is done.")
    expect(in_column(page, "DONE", "Paint the bridge")).to_be_visible()
    assert Task.objects.get(id=task.id).state == "DONE"
    assert page.url.endswith("/"), "the release is no click on the link"

    take(page, "Count all fish")
    carry_to(page, "TODO")
    page.mouse.up()
    expect(said).to_have_text("A task is to do as long as no session has worked on it.")
    expect(in_column(page, "REVIEW", "Count all fish")).to_be_visible()

    take(page, "Count all fish")
    carry_to(page, "DONE")
    page.keyboard.press("Escape")
    expect(page.locator(".ghost, .dragged, .over")).to_have_count(0)
    page.mouse.up()
    expect(in_column(page, "REVIEW", "Count all fish")).to_be_visible()
    assert Task.objects.get(id=other.id).state == "REVIEW"
    assert ada.unexpected(*NO_SOCKET, REFUSED) == []


def test_task_is_moved_by_keyboard_and_its_unfinished_work_is_shown_first(
    visit: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = review_task(world, "Paint the bridge")
    left = UnfinishedTask([UnfinishedWork(task.sessions.get(), "paint", "main", 2, "", Uncommitted())], 0, 1)
    monkeypatch.setattr(views, "unfinished_work", lambda _: left)
    ada = visit(color_scheme="dark")
    page = ada.open("/")
    page.keyboard.press("j")
    expect(in_column(page, "REVIEW", "Paint the bridge")).to_be_focused()
    page.keyboard.press("m")
    dialog = page.get_by_role("dialog", name="Move to another column")
    expect(dialog.get_by_role("button")).to_have_count(3)
    assert accessibility_problems(page, "the dialog") == []
    dialog.get_by_role("button", name="Done").press("Enter")
    asks = page.get_by_role("dialog", name="Not everything is merged")
    expect(asks).to_contain_text("2 commits are not in main")
    assert accessibility_problems(page, "unfinished work") == []
    expect(in_column(page, "REVIEW", "Paint the bridge")).to_be_visible()
    asks.get_by_role("button", name="Mark as done anyway").press("Enter")
    expect(page.get_by_role("status").filter(has_text="“Paint the bridge” is done.")).to_be_visible()
    expect(in_column(page, "DONE", "Paint the bridge")).to_be_visible()
    expect(page.locator("[aria-busy]")).to_have_count(0)
    expect(card(page, "Paint the bridge").locator(":focus")).to_have_count(1)
    assert accessibility_problems(page, "the board") == []
    assert ada.unexpected(*NO_SOCKET, REFUSED) == []


def test_task_is_dragged_by_a_finger_that_rests_on_it(visit: Any, world: World) -> None:
    task = review_task(world, "Paint the bridge")
    ada = visit(viewport={"width": 900, "height": 900}, has_touch=True)
    page = ada.open("/")
    touch = page.context.new_cdp_session(page)

    def send(kind: str, *points: tuple[float, float]) -> None:
        shown = [{"x": x, "y": y} for x, y in points]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": shown})

    start, end = box_of(card(page, "Paint the bridge").locator(".meta").first), box_of(column(page, "DONE"))
    send("touchStart", (start["x"] + 5, start["y"] + 5))
    expect(page.locator(".ghost")).to_be_visible()
    send("touchMove", (start["x"] + 15, start["y"] + 15))
    send("touchMove", (end["x"] + 9, end["y"] + 9))
    expect(column(page, "DONE")).to_have_class(IS_OVER)
    send("touchEnd")
    expect(in_column(page, "DONE", "Paint the bridge")).to_be_visible()
    expect(page.locator("#moved")).to_have_text("“Paint the bridge” is done.")
    assert Task.objects.get(id=task.id).state == "DONE"
    assert ada.unexpected(*NO_SOCKET) == []


def test_move_leads_to_the_page_of_the_task_without_javascript(visit: Any, world: World) -> None:
    review_task(world, "Paint the bridge")
    page = visit(java_script_enabled=False).open("/")
    page.get_by_role("link", name="Move to… another column: Paint the bridge").click()
    expect(page.get_by_role("heading", name="Paint the bridge")).to_be_visible()
    expect(page.get_by_role("button", name="Mark as done")).to_be_visible()
