"""The board, timeline, sweeps, help and executors in a real browser: keyboard, phones and both themes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Locator, Route, expect

from sessions_app.models import SweepRequest, Task, TaskSession
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import NO_SOCKET, navigating, reported
from tests.pages.world import World, asks, ingest_lines, make_sweep, make_world, path_of, supervise
from tests.waiting import eventually, settled

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def world(browser: Browser) -> World:
    supervise()
    return make_world()


def create_full_board(world: World) -> TaskSession:
    """Create sessions in every column, one with an open permission, and a sweep that found them."""
    world.ada.is_staff = True
    world.ada.save()
    session = world.running_session()
    ingest_lines(session, asks())
    session.receipts.create(kind="reattached", verified="same_process")
    resting = world.resting_session(resume_token="t")
    Task.objects.filter(id=resting.task_id).update(title="Paint the bridge")
    sweep = make_sweep(session, loaded=1, reattached=1, failed=1)
    sweep.rows.create(session=resting, observed="alive", rule="alive_same_agent", agent_action="reattach")
    world.task("Count the fish", description="All of them.")
    return session


def create_unfinished_request() -> str:
    return f"/sweeps/requests/{SweepRequest.objects.create(rows_done=3, rows_in_all=9).id}/"


PLACES: dict[str, Callable[[TaskSession], str]] = {
    "board": lambda session: "/",
    "a board on which nothing fits": lambda session: "/?q=nowhere",
    "timeline": lambda session: f"{path_of(session)}timeline/",
    "sweep": lambda session: f"/sweeps/{session.sweep_outcomes.get().sweep_id}/",
    "a sweep under way": lambda session: create_unfinished_request(),
    "executors": lambda session: "/executors/",
    "system": lambda session: "/system/",
    "the texts of a task": lambda session: f"/tasks/{session.task_id}/edit/",
    "the deletion of a task": lambda session: f"/tasks/{session.task_id}/delete/",
    "the plan of a task": lambda session: f"/tasks/{session.task_id}/plan/",
    "agents": lambda session: "/agents/",
    "help": lambda session: "/help/",
    "usage": lambda session: "/usage/",
    "restart": lambda session: "/restart/",
}


def test_pages_fit_a_phone_in_both_themes(visit: Any, world: World) -> None:
    session = create_full_board(world)
    paths = {name: place(session) for name, place in PLACES.items()}
    for scheme in ("light", "dark"):
        ada = visit(viewport={"width": 360, "height": 740}, color_scheme=scheme)
        for name, path in paths.items():
            page = ada.open(path)
            for summary in page.locator("details[data-key] > summary").all()[:2]:
                summary.click()
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
            assert accessibility_problems(page, f"{name}, {scheme}") == []
        assert ada.unexpected(*NO_SOCKET) == []


def test_board_uses_the_whole_screen(visit: Any, world: World) -> None:
    create_full_board(world)
    page = visit(viewport={"width": 1800, "height": 900}).open("/")
    assert page.locator(".board").evaluate("board => board.getBoundingClientRect().width") > 1700
    assert page.evaluate("document.documentElement.scrollWidth") <= 1800


def test_column_that_needs_people_comes_first_on_a_phone(visit: Any, world: World) -> None:
    create_full_board(world)
    page = visit(viewport={"width": 360, "height": 740}).open("/")
    columns = page.locator(".column").evaluate_all(
        "all => all.map(one => [one.getBoundingClientRect().top, one.querySelector('.needy') !== null])"
    )
    assert [needy for _, needy in sorted(columns)] == sorted((needy for _, needy in columns), reverse=True)
    assert any(needy for _, needy in columns)


def test_keyboard_shortcuts_navigate_the_board_and_can_be_disabled(visit: Any, world: World) -> None:
    create_full_board(world)
    ada = visit()
    page = ada.open("/")
    titles = page.locator(".task > .title")
    page.keyboard.press("j")
    expect(titles.nth(0)).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("k")
    expect(titles.nth(0)).to_be_focused()
    page.keyboard.press("j")
    expect(titles.nth(1)).to_be_focused()
    page.keyboard.press("x")
    expect(page.get_by_text("1 selected")).to_be_visible()
    page.keyboard.press("x")
    expect(page.locator("#bulk")).to_be_hidden()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("jn?")
    expect(page.get_by_role("searchbox")).to_have_value("jn?")
    page.keyboard.press("Escape")
    page.keyboard.press("n")
    expect(page.get_by_label("Title", exact=True)).to_be_focused()
    page.locator("h1").click()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard")
    expect(dialog).to_be_visible()
    dialog.get_by_label("Enable single-key shortcuts").uncheck()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    ada.open("/")
    page.keyboard.press("j")
    expect(titles.nth(0)).not_to_be_focused()
    assert ada.unexpected(*NO_SOCKET) == []


def test_board_search_filters_at_once_and_updates_the_address(visit: Any, world: World, picture: Any) -> None:
    create_full_board(world)
    page = visit().open("/")
    picture(page, "board")
    page.get_by_role("searchbox").fill("bridge")
    expect(page.locator(".task")).to_have_count(1)
    expect(page).to_have_url(re.compile(r"\?q=bridge$"))
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.reload()
    expect(page.locator(".task")).to_have_count(1)
    with navigating(page):
        page.get_by_role("link", name="Show all").click()
    expect(page.locator(".task")).to_have_count(3)
    page.get_by_label("Needs attention").check()
    expect(page.locator(".task")).to_have_count(1)
    expect(page.locator(".task")).to_contain_text("Asks for permission")


def test_filter_chosen_while_the_page_loads_is_applied(visit: Any, world: World) -> None:
    create_full_board(world)
    page, held = visit().page, list[Route]()

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/board*.js", hold)
    page.goto("/", wait_until="commit")
    eventually(lambda: reported(page, held), describe="the page requests its script")
    page.get_by_label("Needs attention").check()
    for route in held:
        route.continue_()
    page.unroute("**/board*.js", hold)  # a request for the script that is made only now is not held
    expect(page.locator(".task")).to_have_count(1)
    expect(page).to_have_url(re.compile(r"\?needs=1$"))


def place_on_screen(found: Locator) -> float:
    """Return the distance from the top of the window in pixels."""
    box = found.bounding_box()
    assert box is not None
    return box["y"]


def test_selection_focus_and_scroll_survive_board_updates(visit: Any, world: World) -> None:
    session = create_full_board(world)
    ada = visit()
    page = ada.open("/")
    box = page.get_by_role("checkbox", name="Select Demo on Paint the bridge")
    box.check()
    page.get_by_role("checkbox", name="Select Demo on Fix the tests").check()
    page.set_viewport_size({"width": 390, "height": 500})
    box.focus()
    before = settled(lambda: place_on_screen(box))
    Task.objects.filter(id=session.task_id).update(title="Mend all the tests")
    expect(page.get_by_text("Mend all the tests").first).to_be_visible()
    expect(box).to_be_checked()
    expect(box).to_be_focused()
    assert abs(settled(lambda: place_on_screen(box)) - before) < 5
    expect(page.get_by_text("2 selected")).to_be_visible()
    page.set_viewport_size({"width": 1280, "height": 720})
    with navigating(page):
        page.get_by_role("button", name="Stop selected").click()
    expect(page.get_by_role("status").filter(has_text="2 sessions were asked to stop")).to_be_visible()
    page.get_by_role("link", name="Back to the board").click()
    expect(page.get_by_role("heading", name="Board")).to_be_visible()
    assert ada.unexpected(*NO_SOCKET) == []


@pytest.mark.parametrize("javascript", [True, False], ids=["with JavaScript", "without JavaScript"])
def test_task_start_and_board_filter_work_without_javascript(javascript: bool, visit: Any, world: World) -> None:
    create_full_board(world)
    page = visit(java_script_enabled=javascript).open("/")
    page.get_by_label("State").select_option("TODO")
    if not javascript:
        with navigating(page):
            page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator(".task")).to_have_count(1)
    with navigating(page):
        page.get_by_role("button", name="Start Count the fish").click()
    expect(page.get_by_role("heading", name="Count the fish")).to_be_visible()
    assert TaskSession.objects.latest("created_at").prompts.get().text == "All of them."


def test_timeline_shows_entries_and_updates_itself(visit: Any, world: World) -> None:
    session = create_full_board(world)
    ada = visit(timezone_id="Asia/Tokyo")
    page = ada.open(f"{path_of(session)}timeline/")
    entry = page.locator(".entry", has_text="The agent asked for permission")
    expect(entry.locator("time")).to_have_text("21:00:00")
    expect(page.get_by_role("heading", name="March 1, 2026")).to_be_visible()
    entry.locator("summary").click()
    expect(entry.get_by_text("wait kind")).to_be_visible()
    ingest_lines(session, {"kind": "agent.exited", "exit_code": -9, "expected": False})
    expect(page.locator(".entry", has_text="signal 9")).to_be_visible()
    expect(entry.get_by_text("wait kind")).to_be_visible()
    entry.get_by_role("link", name="Show the conversation up to here").click()
    expect(page.get_by_role("heading", name="Fix the tests")).to_be_visible()
    assert ada.unexpected(*NO_SOCKET) == []


def test_dry_run_shows_progress_and_then_its_report(visit: Any, world: World) -> None:
    session = create_full_board(world)
    ada = visit()
    page = ada.open("/sweeps/")
    with navigating(page):
        page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_role("heading", name="Waiting for the supervisor")).to_be_visible()
    SweepRequest.objects.update(rows_done=1, rows_in_all=2)
    expect(page.get_by_role("progressbar", name="1 of 2 sessions")).to_be_visible()
    SweepRequest.objects.update(done_at=timezone.now(), report=a_report(session))
    expect(page.get_by_text("Nothing was changed. 1 session checked in 7 ms.")).to_be_visible()
    expect(page.get_by_role("link", name="Fix the tests")).to_be_visible()
    assert ada.unexpected(*NO_SOCKET) == []


def a_report(session: TaskSession) -> dict[str, Any]:
    row = {
        "session_id": str(session.id),
        "task_id": str(session.task_id),
        "task_title": "Fix the tests",
        "observed": "alive",
        "rule": "alive_same_agent",
        "agent_action": "reattach",
        "strategy": "",
        "error_message": "",
    }
    return {"examined": 1, "duration_ms": 7, "outcomes": {}, "sessions": [row]}
