"""The agent's settings and its questions on the session page, in a real browser with the demo agent."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.drills.deployment import Session
from tests.drills.session_steps import wait_for_first_turn
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import navigating
from tests.pages.people import Place, agent_says, path_of, pill
from tests.services import ROOT
from tests.waiting import eventually

pytestmark = pytest.mark.browser
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "color_scheme": "dark"}
DRAW_AGAIN = """async () => {
  const { partsOf } = await import("/static/kandev/live.js");
  const original = window.fetch;
  window.fetch = async (...request) => {
    const answer = await original(...request);
    for (const name of request[1]?.method === "POST" ? ["agent", "choices", "permissions"] : [])
      partsOf([name])({ [name]: document.getElementById(`part-${name}`).innerHTML.replaceAll(' disabled=""', "") });
    return answer;
  };
}"""
"""Redraws the forms while the response to a change is on its way, as updates from the agent do."""


@pytest.fixture(scope="module")
def place(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("place"), browser)
    yield made
    made.deployment.close()


def setting(page: Page, name: str) -> Locator:
    """Return the control of one setting, in the composer."""
    return page.locator("#composer").get_by_label(name, exact=True)


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def asking_session(place: Place, title: str) -> Session:
    session = place.start("question", title)
    session.wait_for("RUNNING")
    return session


def test_changed_mode_and_switch_reach_the_agent(place: Place) -> None:
    session = place.start("remember walrus", "Plan the fence")
    wait_for_first_turn(session)
    with place.visiting() as visit:
        page = visit.open(path_of(session))
        setting(page, "Mode").select_option("Plan")
        expect(setting(page, "Mode")).to_have_value("plan")
        switch = page.get_by_role("switch", name="Capitals")
        switch.click()
        expect(switch).to_have_attribute("aria-checked", "true")
        expect(page.locator("#part-choices").get_by_role("status")).to_have_count(0)
        page.get_by_label("Your prompt").fill("write fence.txt planks")
        page.get_by_role("button", name="Send", exact=True).click()
        expect(agent_says(page).last).to_contain_text("I WOULD WRITE FENCE.TXT.")
        assert accessibility_problems(page) == []
        assert visit.complaints == []


def test_refused_change_is_shown_with_its_reason(place: Place) -> None:
    reason = "No plans on a Friday"
    command = [sys.executable, "-m", "tests.support.refusing_agent", "session/set_mode", reason]
    session = place.start("remember walrus", "Act", {"command": command, "env": {"PYTHONPATH": str(ROOT)}})
    wait_for_first_turn(session)
    with place.visiting() as visit:
        page = visit.open(path_of(session))
        page.evaluate(DRAW_AGAIN)
        for changes in (1, 2):  # a change that is refused again looks the same as before, except for the chosen value
            setting(page, "Mode").select_option("Plan")
            eventually(lambda: session.names().count("session.setting.refused") == changes, timeout=60)  # noqa: B023
            refusal = page.locator("#part-choices").get_by_role("status")
            expect(refusal).to_contain_text(f"Mode: The agent refused “Plan”: {reason}")
            expect(setting(page, "Mode")).to_have_value("act")
        assert visit.complaints == []


def test_wrong_answer_is_refused_and_the_right_one_sent_once(place: Place) -> None:
    session = asking_session(place, "Set up the database")
    with place.visiting() as visit:
        page = visit.open(path_of(session))
        page.evaluate(DRAW_AGAIN)
        name = page.get_by_label("Name")
        page.get_by_role("button", name="Send answer").click()
        expect(page.locator(":focus")).to_have_attribute(
            "name", page.get_by_label("SQLite").get_attribute("name") or ""
        )
        page.get_by_label("SQLite").check()
        name.fill("Not A Name")
        page.get_by_role("button", name="Send answer").click()
        expect(name).to_be_focused()
        expect(name).to_have_attribute("aria-invalid", "true")
        assert accessibility_problems(page) == []
        name.fill("heron")
        page.get_by_role("button", name="Send answer").click()
        expect(pill(page, "Session")).to_have_text("Your turn")
        expect(agent_says(page).last).to_contain_text('"engine": "sqlite"')
        expect(page.locator("#permissions form")).to_have_count(0)
        assert session.agent_log().count("The answer was") == 1
        assert visit.unexpected("409") == []


def test_question_in_the_inbox_is_answered_on_a_phone(place: Place) -> None:
    session = asking_session(place, "Choose a database")
    with place.visiting(**PHONE) as visit:
        page = visit.open("/attention/")
        item = page.locator(".needs", has_text="Choose a database")
        expect(item).to_contain_text("How should I set up the database of the demo?")
        assert fits(page)
        with navigating(page):
            item.get_by_role("link", name="Open session").click()
        page.get_by_label("PostgreSQL").check()
        page.get_by_label("backups").check()
        assert fits(page)
        assert accessibility_problems(page) == []
        page.get_by_role("button", name="Send answer").click()
        expect(page.locator("#permissions form")).to_have_count(0)
        expect(agent_says(page).last).to_contain_text("The answer was")
        answer = json.loads(session.agent_log().partition("The answer was ")[2].rstrip(".\n"))
        assert (answer["engine"], answer["extras"]) == ("postgresql", ["backups"])
        page.goto("/attention/")
        expect(page.locator(".needs", has_text="Choose a database")).to_contain_text("finished its turn")
        assert visit.complaints == []
