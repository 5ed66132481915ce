"""A login by a method of the agent, from the page of the session that waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.pages.people import Place, agent_says, path_of
from tests.services import require
from tests.support import login_agent
from tests.waiting import eventually

pytestmark = pytest.mark.browser


@pytest.fixture
def place(browser: Browser, tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, browser)
    yield made
    made.deployment.close()


def test_login_from_the_page_sends_the_waiting_prompt(place: Place) -> None:
    session = place.start("remember walrus", profile=login_agent.COMMAND)
    with place.visiting() as visit:
        page = visit.open(path_of(session))
        banner = page.get_by_role("region", name="What to know")
        expect(banner.locator("code").filter(has_text="--log-in")).to_be_visible()
        banner.get_by_role("button", name="Log in: Expired account").click()
        expect(banner).to_contain_text("This account has expired")
        banner.get_by_role("button", name="Log in: Demo account").click()
        expect(agent_says(page).last).to_contain_text("I will remember walrus.")
        assert visit.unexpected() == []


def terminal_text(page: Page) -> str:
    return str(page.locator(".xterm-rows").inner_text()).replace("\xa0", " ")


def has_ended(page: Page) -> bool:
    """Press Ctrl+D: once the agent's login reads, that is the end of its input, and until then it is nothing."""
    page.keyboard.press("Control+D")
    return bool(page.get_by_text("The login has ended").is_visible())


def test_command_is_typed_by_a_click_alone_and_run_by_enter(place: Place) -> None:
    require("terminal")
    session = place.start("remember walrus", profile=login_agent.COMMAND)
    with place.visiting() as visit:
        page = visit.open(f"{path_of(session)}#login-1")
        command = page.get_by_role("region", name="What to know").locator("[data-types]")
        expect(command).to_be_visible()
        page.evaluate("location.hash = '#login'")
        expect(page.get_by_role("tab", name="Terminal")).to_have_attribute("aria-selected", "false")
        shown = command.locator("code").inner_text()
        assert shown.startswith("exec ")
        command.click()
        eventually(lambda: shown in terminal_text(page).replace("\n", ""), timeout=60, describe="the command is typed")
        assert "The login has ended" not in page.content(), "nothing runs before Enter"
        page.keyboard.press("Enter")
        eventually(lambda: has_ended(page), describe="the login has ended")
        assert visit.unexpected() == []
