"""The terminal of a session's page: a real shell that survives a killed server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.pages.browsers import SERVER_AWAY
from tests.pages.people import Place, path_of
from tests.services import require
from tests.waiting import eventually

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def place(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    require("terminal")
    made = Place(tmp_path_factory.mktemp("place"), browser)
    yield made
    made.deployment.close()


def screen(page: Page) -> str:
    """Return the text on the terminal."""
    return str(page.locator(".xterm-rows").inner_text()).replace("\xa0", " ")


def typed(page: Page, words: str) -> None:
    page.locator(".xterm-helper-textarea").focus()
    page.keyboard.type(words)
    page.keyboard.press("Enter")


def sees(page: Page, words: str) -> None:
    eventually(lambda: words in screen(page), timeout=60, describe=f"the terminal shows {words!r}")


def test_shell_survives_a_killed_server(place: Place) -> None:
    session = place.start("remember one", "Shells")
    session.wait_for("WAITING_FOR_INPUT")
    with place.visiting() as me:
        page = me.open(path_of(session))
        page.get_by_role("tab", name="Terminal").click()
        expect(page.locator(".xterm-rows")).to_be_visible()
        typed(page, "export KEPT=walrus; echo told-$((40+2))")
        sees(page, "told-42")
        typed(page, "printf '\\033[1;31mred\\033[38;2;1;2;3mtrue\\033[0m\\n'; stty size")
        sees(page, "redtrue")
        columns = page.evaluate("document.querySelector('.xterm-rows').children.length")
        assert columns > 5, "the terminal fits its panel"

        place.kill()
        expect(page.get_by_text("Connection lost.")).to_be_visible()
        place.serve()
        expect(page.get_by_text("Connection lost.")).to_be_hidden()
        sees(page, "told-42")
        assert screen(page).count("told-42") == 1, "the scrollback is shown once"
        typed(page, "echo still-$KEPT")
        sees(page, "still-walrus")

        other = me.tab()
        other.goto(path_of(session))
        other.get_by_role("tab", name="Terminal").click()
        expect(page.get_by_text("The terminal is open in another window")).to_be_visible()
        page.get_by_role("button", name="Use it here").click()
        expect(other.get_by_text("The terminal is open in another window")).to_be_visible()

        page.keyboard.press("F6")
        expect(page.get_by_role("tab", name="Terminal")).to_be_focused()
        typed(page, "exit 3")
        expect(page.get_by_text("The shell has ended with code 3.")).to_be_visible()
        page.get_by_role("button", name="New shell").click()
        typed(page, "echo anew-$((1+1))-$KEPT.")
        sees(page, "anew-2-.")
        assert me.unexpected(*SERVER_AWAY) == []
