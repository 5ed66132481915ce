"""Moving around in a browser: the palette and the keys of a session's page, by keyboard alone."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from sessions_app.prompts.services import queue_prompt
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import NO_SOCKET, hold_updates, navigating, reported, wait_until
from tests.pages.world import World, asks, ingest_lines, path_of
from tests.waiting import eventually

pytestmark = pytest.mark.browser

FREEZE = "window.at = performance.now(); performance.now = () => window.at"
LATER = "window.at += 5000"
WORKER = "async () => (await navigator.serviceWorker.getRegistration('/static/kandev/'))?.active?.state ?? null"
HOLD_SEARCHES = """() => {
  const send = window.fetch;
  window.fetch = (to, ...more) => String(to).includes("/find/")
    ? new Promise((resolve) => {
        window.release = () => resolve(send(to, ...more));
        document.documentElement.dataset.held = "";
      })
    : send(to, ...more);
}"""


def test_palette_opens_everything_by_keyboard(visit: Any, world: World) -> None:
    session = world.running_session()
    other = world.task("Paint the boat")
    ada = visit()
    page = ada.open("/")
    page.keyboard.press("Control+k")
    field = page.get_by_role("combobox", name="Find")
    expect(field).to_be_focused()
    expect(page.get_by_role("option", name="Fix the tests Demo Working")).to_be_visible()
    assert accessibility_problems(page) == []
    ada.complaints.clear()  # axe tries styles that the content security policy blocks
    page.keyboard.type("boat")
    results = page.get_by_role("listbox", name="Results").get_by_role("option")
    selected = results.and_(page.get_by_role("option", selected=True))
    expect(results.filter(has_text="Search messages for “boat”")).to_be_visible()
    expect(selected).to_contain_text("Paint the boat")
    with navigating(page):
        page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/tasks/{other.id}/$"))
    page.get_by_role("link", name="Find").click()
    page.keyboard.type("demo")
    expect(page.get_by_role("option", name="Fix the tests")).to_be_visible()
    page.keyboard.press("Escape")
    expect(field).to_be_hidden()
    page = ada.open(path_of(session))
    page.keyboard.press("/")
    page.keyboard.type("cancel t")
    expect(results.filter(has_text="Search messages for “cancel t”")).to_be_visible()
    expect(selected).to_have_text("Cancel turn")
    with page.expect_response("**/cancel/"):
        page.keyboard.press("Enter")
    assert session.intents.filter(kind="cancel").exists()
    assert ada.unexpected(*NO_SOCKET) == []


def test_palette_presses_the_button_that_the_page_has_now(visit: Any, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks())
    page = visit().open(path_of(session))
    hold_updates(page)
    results = page.get_by_role("listbox", name="Results").get_by_role("option")
    selected = results.and_(page.get_by_role("option", selected=True))
    for change in ("replaceWith(one.cloneNode(true))", "remove()"):
        page.keyboard.press("Control+k")
        page.keyboard.type("cancel t")
        expect(selected).to_have_text("Cancel turn")
        page.evaluate(f"const one = document.querySelector('button[formaction$=\"/cancel/\"]'); one.{change}")
        if change == "remove()":
            page.keyboard.press("Enter")
            expect(page.get_by_role("dialog", name="Find")).to_contain_text("“Cancel turn” is no longer offered")
        else:
            page.route("**/cancel/", lambda route: route.fulfill(status=204))
            with page.expect_request("**/cancel/"):
                page.keyboard.press("Enter")
    assert not session.intents.filter(kind="cancel").exists()


def test_what_is_typed_while_the_palette_loads_is_its_own(visit: Any, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks())
    page = visit().open(path_of(session))
    expect(page.get_by_role("button", name="Allow")).to_be_visible()
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route(re.compile(r"/palette[^/]*\.js"), hold)
    page.keyboard.press("/")
    page.keyboard.type("a boat")
    eventually(lambda: reported(page, held), describe="the palette is loading")
    held[0].continue_()
    field = page.get_by_role("combobox", name="Find")
    expect(field).to_be_focused()
    expect(field).to_have_value("a boat")
    expect(page.get_by_role("option", name="Search messages for “a boat”")).to_be_visible()
    assert not session.intents.filter(kind="answer").exists()


def test_palette_acts_only_on_what_was_named_or_chosen(visit: Any, world: World) -> None:
    session = world.running_session()
    for message_id in ("one", "two"):
        queue_prompt(session.id, message_id, f"do {message_id}", world.ada)
    page = visit().open(path_of(session))
    expect(page.get_by_role("button", name="Withdraw")).to_have_count(2)
    page.keyboard.press("Control+k")
    results = page.get_by_role("listbox", name="Results").get_by_role("option")
    expect(results.filter(has_text="Fix the tests").first).to_be_visible()
    expect(results.filter(has_text="Cancel turn")).to_have_count(1)
    expect(results.filter(has_text="Withdraw")).to_have_count(0)
    expect(results.and_(page.get_by_role("option", selected=True))).to_have_count(0)
    page.keyboard.press("ArrowUp")
    expect(results.last).to_have_attribute("aria-selected", "true")


def test_answer_of_the_server_moves_no_choice(visit: Any, world: World) -> None:
    session = world.running_session()
    page = visit().open(path_of(session))
    page.keyboard.press("Control+k")
    results = page.get_by_role("listbox", name="Results").get_by_role("option")
    expect(results.filter(has_text="Fix the tests").first).to_be_visible()
    page.evaluate(HOLD_SEARCHES)
    page.keyboard.type("s")
    expect(page.locator("html")).to_have_attribute("data-held", "")
    page.keyboard.press("ArrowDown")
    chosen = results.and_(page.get_by_role("option", selected=True))
    text = chosen.inner_text()
    assert text != results.first.inner_text()
    page.evaluate("window.release()")
    expect(results.filter(has_text="Search messages for")).to_be_visible()
    expect(chosen).to_have_text(re.compile(re.escape(text.split("\n")[0])))


def test_keys_answer_only_what_was_there_to_read(visit: Any, world: World) -> None:
    session = world.running_session()
    ada = visit()
    page = ada.open(path_of(session))
    page.evaluate(FREEZE)
    ingest_lines(session, asks("p1"))
    card = page.locator(".asks[data-key=p1]")
    expect(card).to_be_visible()
    expect(card).not_to_have_attribute("inert", "")
    page.keyboard.press("a")
    expect(page.locator("#announce")).to_contain_text("only just appeared")
    page.evaluate(LATER)
    page.keyboard.press("c")
    expect(page.locator("#text")).to_be_focused()
    page.keyboard.press("a")
    expect(page.locator("#text")).to_have_value("a")
    assert not session.intents.filter(kind="answer").exists(), "typed, or too early"
    page.locator("#text").blur()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard")
    expect(dialog).to_contain_text("allow the request that is shown")
    assert accessibility_problems(page) == []
    ada.complaints.clear()  # axe tries styles that the content security policy blocks
    dialog.get_by_label("Enable single-key shortcuts").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("a")
    page.keyboard.press("?")
    dialog.get_by_label("Enable single-key shortcuts").check()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert not session.intents.filter(kind="answer").exists(), "switched off"
    card.locator("[data-key-action=allow]").focus()
    page.evaluate(LATER)
    page.keyboard.press("a")
    expect(page.get_by_text("The answer is being sent to the agent.")).to_be_visible()
    assert session.intents.get(kind="answer").payload["option_id"] == "allow"
    assert ada.unexpected(*NO_SOCKET) == []


def test_list_beside_the_conversation_is_used_by_keys_and_folded(visit: Any, world: World) -> None:
    first, second = world.running_session(), world.running_session()
    ada = visit(viewport={"width": 1280, "height": 800})
    page = ada.open(path_of(second))
    panel = page.get_by_role("navigation", name="Sessions")
    rows = panel.get_by_role("listitem")
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_have_class("unread")
    with navigating(page):
        page.keyboard.press("n")
    expect(page).to_have_url(re.compile(str(first.id)))
    with page.expect_response("**/pin/"):
        panel.get_by_role("button", name="Pin Fix the tests").last.press("Enter")
    expect(panel.get_by_text("Pinned")).to_be_visible()
    expect(panel.locator(".unread")).to_have_count(0)
    page.get_by_role("button", name="Sessions", exact=True).press("Enter")
    expect(panel).to_be_hidden()
    page = ada.open(path_of(first))
    expect(panel).to_be_hidden()
    page.get_by_role("button", name="Sessions", exact=True).press("Enter")
    expect(panel).to_be_visible()
    page.set_viewport_size({"width": 390, "height": 844})
    expect(panel).to_be_hidden()
    page.get_by_role("button", name="Sessions", exact=True).press("Enter")
    expect(panel.locator("[aria-current]")).to_be_focused()
    found = [each for each in accessibility_problems(page) if "page-has-heading-one" not in each]
    assert found == [], "the heading is behind the drawer, which leaves nothing else to be used"
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    expect(page.get_by_role("button", name="Sessions", exact=True)).to_be_focused()
    ada.complaints.clear()


def test_worker_of_notifications_is_ready_once_they_are_allowed(visit: Any, world: World) -> None:
    ada = visit(permissions=["notifications"])
    page = ada.open("/settings/notifications/")
    assert page.evaluate(WORKER) is None
    page.get_by_role("button", name="Allow in this browser").click()
    expect(page.get_by_text("This browser shows notifications of the kinds above.")).to_be_visible()
    wait_until(page, f"async () => (await ({WORKER})())?.startsWith('activ')")
    assert ada.unexpected(*NO_SOCKET) == []
