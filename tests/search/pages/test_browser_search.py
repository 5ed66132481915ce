"""A search from the session page to a message far above, in a real browser, also without JavaScript."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from sessions_app.models import TaskSession
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import NO_SOCKET, navigating
from tests.pages.world import World, path_of
from tests.search.conversations import index_all, say

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def session(world: World) -> TaskSession:
    """Return a session with a word that is beyond the first page of its conversation."""
    made = world.session()
    say(made, "agent", "a zebra far above")
    for number in range(210):
        say(made, "agent", f"answer {number}")
    index_all()
    return made


@pytest.mark.parametrize("has_scripts", [True, False])
def test_message_far_above_is_found_from_the_session(has_scripts: bool, visit: Any, session: TaskSession) -> None:
    ada = visit(java_script_enabled=has_scripts)
    page = ada.open(path_of(session))
    page.get_by_label("Search this conversation").fill("zeb")
    with navigating(page):
        page.get_by_label("Search this conversation").press("Enter")
    expect(page.locator("#search-count")).to_have_text("1 result")
    expect(page.locator(".result mark")).to_have_text("zebra")
    with navigating(page):
        page.locator(".result a").click()
    message = session.messages.order_by("seq").first()
    assert message is not None
    found = page.locator(f"#m-{message.id}")
    expect(found).to_contain_text("a zebra far above")
    expect(found).to_be_in_viewport()
    expect(found).to_have_css("outline-style", "solid")
    assert ada.unexpected(*NO_SOCKET) == []


def test_results_are_accessible_on_a_phone_and_in_the_dark(visit: Any, session: TaskSession) -> None:
    for screen in ({}, {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}):
        page = visit(**screen).open("/search/?q=answer")
        expect(page.locator("#search-count")).to_have_text("210 results")
        assert accessibility_problems(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
