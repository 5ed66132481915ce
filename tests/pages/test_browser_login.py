"""A login by a method of the agent, from the page of the session that waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.pages.people import Place, agent_says, path_of
from tests.support import login_agent

pytestmark = pytest.mark.browser


@pytest.fixture
def place(browser: Browser, tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, browser)
    yield made
    made.deployment.close()


def test_login_from_the_page_sends_the_waiting_prompt(place: Place) -> None:
    session = place.start("remember walrus", profile=login_agent.COMMAND)
    with place.visiting() as me:
        page = me.open(path_of(session))
        banner = page.get_by_role("region", name="What to know")
        expect(banner.locator("code").filter(has_text="--log-in")).to_be_visible()
        banner.get_by_role("button", name="Log in: Expired account").click()
        expect(banner).to_contain_text("This account has expired")
        banner.get_by_role("button", name="Log in: Demo account").click()
        expect(agent_says(page).last).to_contain_text("I will remember walrus.")
        assert me.unexpected() == []
