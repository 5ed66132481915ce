"""A search from the session page to a message far above, in a real browser, also without JavaScript."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from sessions_app.models import TaskSession
from sessions_app.stream import views as conversation
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import NO_SOCKET, navigating
from tests.pages.world import World, path_of
from tests.search.conversations import index_all, say

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

ANSWERS = 24
PHONE = {"width": 390, "height": 844}


@pytest.fixture
def session(world: World, monkeypatch: pytest.MonkeyPatch) -> TaskSession:
    """Return a session with a word that is beyond the first page of its conversation."""
    monkeypatch.setattr(conversation, "PAGE_SIZE", 8)
    monkeypatch.setattr(conversation, "MESSAGES_AFTER_TARGET", 2)
    made = world.session()
    say(made, "agent", "a zebra far above")
    for number in range(ANSWERS):
        say(made, "agent", f"answer {number}")
    index_all()
    return made


def test_message_far_above_is_found_without_scripts(visit: Any, session: TaskSession) -> None:
    ada = visit(java_script_enabled=False)
    page = ada.open(path_of(session))
    page.get_by_label("Search this conversation").fill("zeb")
    with navigating(page):
        page.get_by_label("Search this conversation").press("Enter")
    expect(page.locator("#search-count")).to_have_text("1 result")
    expect(page.locator(".result mark")).to_have_text("zebra")
    with navigating(page):
        page.locator(".result a").click()
    expect_far_message(page, session)


def expect_far_message(page: Page, session: TaskSession) -> None:
    message = session.messages.order_by("seq").first()
    assert message is not None
    found = page.locator(f"#m-{message.id}")
    expect(found).to_contain_text("a zebra far above")
    expect(found).to_be_in_viewport()
    expect(found).to_have_css("outline-style", "solid")


def test_search_of_a_conversation_jumps_to_messages(visit: Any, session: TaskSession) -> None:
    ada = visit()
    page = ada.open(path_of(session))
    field, place = page.get_by_label("Search this conversation"), page.locator(".place")
    rows = page.locator("#found-list [role=option]")
    page.locator("#session[data-scripted]").wait_for()
    page.locator("h1").click()
    page.keyboard.press("f")
    expect(field).to_be_focused()
    page.keyboard.type("answer")
    expect(rows).to_have_count(ANSWERS)
    expect(rows.first).to_contain_text("answer 23")
    assert accessibility_problems(page, "the results") == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator(".message:target")).to_contain_text("answer 22")
    expect(page.locator(".message:target")).to_be_in_viewport()
    expect(place).to_have_text("2 of 24")
    expect(rows.first).to_be_hidden()
    page.get_by_label("Older result").click()
    expect(place).to_have_text("3 of 24")
    expect(page.locator(".message:target")).to_contain_text("answer 21")

    page.set_viewport_size(PHONE)
    assert accessibility_problems(page, "a result") == []
    field.fill("zebra")
    expect(rows).to_have_count(1)
    with navigating(page):
        page.keyboard.press("Enter")
    expect_far_message(page, session)
    expect(page.get_by_label("Search this conversation")).to_have_value("zebra")
    expect(place).to_have_text("1 of 1")
    field.fill("nowhere")
    expect(page.get_by_text("No matches.")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_text("No matches.")).to_be_hidden()
    assert ada.unexpected(*NO_SOCKET) == []


def test_results_are_accessible_on_a_phone_and_in_the_dark(visit: Any, session: TaskSession) -> None:
    for screen in ({}, {"viewport": PHONE, "color_scheme": "dark"}):
        page = visit(**screen).open("/search/?q=answer")
        expect(page.locator("#search-count")).to_have_text("24 results")
        assert accessibility_problems(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
