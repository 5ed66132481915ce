"""What an agent asks is answered from a notification on a phone, and by keyboard from inbox and board."""

from __future__ import annotations

from typing import Any, Final

import pytest
from django.test import Client
from playwright.sync_api import expect

from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import NO_SOCKET, navigating
from tests.pages.world import World, ingest_lines
from tests.permissions.pages.test_answer_page import asks_to_run
from tests.permissions.pages.test_browser_cards import IS_REACHED

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

PHONE: Final = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "color_scheme": "dark"}
LONG: Final = "\n".join(f"echo step {number}" for number in range(80)) + "\nrm -rf the-end"


def test_phone_allows_once_with_the_second_tap(visit: Any, ada: Client, world: World) -> None:
    session = world.running_session()
    line = asks_to_run()
    line["tool_call"]["raw_input"]["command"] = LONG
    ingest_lines(session, line)
    chosen = {"browser_kinds": ["permission"]}
    assert ada.post("/settings/notifications/browser/", chosen).status_code == 302
    (notice,) = ada.get("/attention/count/").json()["notices"]
    phone = visit(**PHONE)
    page = phone.open(notice["url"])  # the first tap, on the notification
    once = page.get_by_role("button", name="name of allow_once")
    expect(page.locator("pre.command")).to_contain_text("rm -rf the-end")
    assert page.evaluate(IS_REACHED, once.element_handle()), "without scrolling"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert accessibility_problems(page) == []
    with navigating(page):
        once.tap()  # the second one
    expect(page.get_by_text("Your answer is on its way to the agent.")).to_be_visible()
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
    assert session.intents.get(kind="answer").payload["option_id"] == "allow_once"
    assert phone.unexpected(*NO_SOCKET) == []


@pytest.mark.parametrize(("place", "heading"), [("/attention/", "Inbox"), ("/", "Board")])
def test_answer_by_keyboard_leads_back(place: str, heading: str, visit: Any, ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks_to_run())
    desk = visit(viewport={"width": 1280, "height": 800})
    page = desk.open(place)
    link = page.get_by_role("link", name="Answer")
    answers_page = link.get_attribute("href")
    dialog = page.get_by_role("dialog", name=session.task.title)
    link.press("Enter")
    expect(dialog).to_be_visible()
    assert accessibility_problems(page) == []
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(link).to_be_focused()
    link.press("Enter")
    other = desk.tab()
    other.goto(str(answers_page))
    reject = dialog.get_by_role("button", name="name of reject_once")
    expect(dialog.locator(".asks")).not_to_have_attribute("inert", "")
    reject.focus()
    with navigating(page):
        page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=heading, level=1)).to_be_visible()
    expect(other.get_by_text("Answered by ada. The answer is being sent to the agent.")).to_be_visible()
    expect(other.get_by_role("button", name="name of reject_once ✓")).to_be_disabled()
    assert session.intents.get(kind="answer").payload["option_id"] == "reject_once"
    assert desk.unexpected(*NO_SOCKET) == []
