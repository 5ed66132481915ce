"""The composer of a session in a real browser: settings, completion, history, and its place on a phone."""

from __future__ import annotations

from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from sessions_app.models import AgentSettings, TaskSession
from sessions_app.prompts import services as prompts
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import NO_SOCKET
from tests.pages.world import World, asks, ingest_lines, make_world, path_of, supervise

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

ACT, PLAN = {"value": "act", "name": "Act"}, {"value": "plan", "name": "Plan"}
MODE: Final = {"id": "mode", "name": "Mode", "type": "select", "value": "act", "choices": [ACT, PLAN]}
MODEL: Final = {"id": "model", "name": "Model", "type": "select", "value": "act", "choices": [ACT, PLAN]}
FAST: Final = {"id": "fast", "name": "Fast answers", "type": "boolean", "value": False}
PHONE: Final[dict[str, Any]] = {
    "viewport": {"width": 360, "height": 740},
    "has_touch": True,
    "is_mobile": True,
    "color_scheme": "dark",
}


@pytest.fixture
def world(browser: Browser) -> World:
    supervise()
    return make_world()


@pytest.fixture
def session(world: World) -> TaskSession:
    made = world.running_session()
    ingest_lines(
        made,
        {"kind": "agent.settings", "settings": [FAST, MODEL, MODE], "reason": "opened"},
        {"kind": "agent.commands", "commands": [{"name": "work", "description": "Work <hard>", "hint": ""}]},
    )
    return made


def test_setting_applies_when_it_is_chosen_and_before_the_prompt(visit: Any, session: TaskSession) -> None:
    ada = visit()
    page: Page = ada.open(path_of(session))
    order: list[str] = []
    page.on("request", lambda request: order.append(request.url) if request.method == "POST" else None)
    composer, choices = page.get_by_label("Your prompt"), page.locator("#part-choices")
    expect(choices.locator("select").first).to_have_attribute("aria-label", "Mode")
    choices.get_by_label("Mode", exact=True).select_option("plan")
    composer.fill("Go on")
    composer.press("Control+Enter")
    expect(composer).to_have_value("")
    expect(choices.get_by_role("status")).to_contain_text("Mode: Waiting for the agent. Now: Act.")
    expect(choices.get_by_label("Mode", exact=True)).to_have_value("plan")
    assert [url.rstrip("/").rpartition("/")[2] for url in order] == ["setting", "prompt"]
    choices.get_by_role("switch", name="Fast answers").click()
    expect(choices.get_by_role("switch", name="Fast answers")).to_have_attribute("aria-checked", "true")
    assert AgentSettings.objects.get(session=session).change_of("fast")["value"] is True
    expect(page.get_by_role("button", name="Apply Mode")).to_be_hidden()
    assert accessibility_problems(page) == []
    assert ada.unexpected(*NO_SOCKET) == []


def test_prompt_that_is_not_sent_after_a_refused_setting_says_so(visit: Any, session: TaskSession) -> None:
    page: Page = visit().open(path_of(session))
    refusal = {"status": 409, "json": {"code": "conflict", "message": "Not now."}}
    page.route("**/setting/", lambda route: route.fulfill(**refusal), times=1)
    composer, choices = page.get_by_label("Your prompt"), page.locator("#part-choices")
    problem = page.locator("#problem")
    choices.get_by_label("Mode", exact=True).select_option("plan")
    expect(problem).to_contain_text("Not now.")
    choices.get_by_role("switch", name="Fast answers").click()
    expect(choices.get_by_role("switch", name="Fast answers")).to_have_attribute("aria-checked", "true")
    expect(problem).to_contain_text("Not now.")
    composer.fill("Go on")
    composer.press("Control+Enter")
    expect(problem).to_contain_text("Your prompt was not sent.")
    expect(composer).to_have_value("Go on")
    composer.press("Control+Enter")
    expect(composer).to_have_value("")


def test_files_commands_and_earlier_prompts_are_offered(visit: Any, world: World, session: TaskSession) -> None:
    prompts.queue_prompt(session.id, "two", "do two\nand more", world.ada)
    page: Page = visit().open(path_of(session))

    def answer(route: Route) -> None:
        paths = ["src/mail/module_03.py", "my notes/module_3.txt"]
        route.fulfill(json={"entries": [{"path": path, "type": "file"} for path in paths], "truncated": False})

    page.route("**/files/search/?query=module_03", answer)
    composer, offers = page.get_by_label("Your prompt"), page.get_by_role("listbox", name="Suggestions")
    composer.press_sequentially("Fix @module_03")
    expect(offers.get_by_role("option")).to_have_text(["src/mail/module_03.py", "my notes/module_3.txt"])
    composer.press("Enter")
    expect(composer).to_have_value("Fix @src/mail/module_03.py ")
    composer.fill("@module_03")
    offers.get_by_role("option").nth(1).click()
    expect(composer).to_have_value('@"my notes/module_3.txt" ')
    composer.fill("/wo")
    expect(offers.get_by_role("option")).to_have_text(["/workWork <hard>"])
    composer.press("Tab")
    expect(composer).to_have_value("/work ")
    composer.press("ArrowUp")
    expect(composer).to_have_value("/work ")
    composer.fill("")
    composer.press("ArrowUp")
    expect(composer).to_have_value("do two\nand more")
    composer.press("ArrowUp")
    expect(composer).to_have_value("Look at the tests.")
    composer.press("ArrowDown")
    expect(composer).to_have_value("do two\nand more")
    composer.press("ArrowDown")
    expect(composer).to_have_value("")


def test_offer_replaces_what_is_typed_before_the_next_answer(visit: Any, session: TaskSession) -> None:
    page: Page = visit().open(path_of(session))
    page.route("**/files/search/?query=*", lambda route: None)  # not answered yet
    found = {"entries": [{"path": "src/module.py", "type": "file"}], "truncated": False}
    page.route("**/files/search/?query=mod", lambda route: route.fulfill(json=found))
    composer, offers = page.get_by_label("Your prompt"), page.get_by_role("listbox", name="Suggestions")
    composer.fill("Fix @mod")
    expect(offers.get_by_role("option")).to_have_text(["src/module.py"])
    composer.press("u")
    composer.press("Tab")
    expect(composer).to_have_value("Fix @src/module.py ")
    expect(offers).to_be_hidden()


TOO_SMALL: Final = """() =>
    [...document.querySelectorAll(":is(#composer, #queue) :is(button, select, label.button, summary)")]
    .filter(each => each.offsetParent && each.offsetHeight < 44).map(each => each.outerHTML)"""
SMALL_TEXT: Final = """() => [...document.querySelectorAll("#composer :is(select, textarea)")]
    .filter(each => parseFloat(getComputedStyle(each).fontSize) < 16).map(each => each.outerHTML)"""
COVERED: Final = """() => {
    const top = document.getElementById("composer").getBoundingClientRect().top;
    return [...document.querySelectorAll("#permissions button")].filter(each => {
        each.scrollIntoView({ block: "nearest" });
        return each.getBoundingClientRect().bottom > top;
    }).length; }"""


def test_composer_on_a_phone_leaves_room_and_does_not_zoom(visit: Any, world: World, session: TaskSession) -> None:
    prompts.queue_prompt(session.id, "two", "do two", world.ada)
    ingest_lines(session, asks())
    page: Page = visit(**PHONE).open(path_of(session))
    expect(page.locator("#part-choices select").first).to_be_visible()
    expect(page.locator("#permissions button").first).to_be_enabled()
    assert page.evaluate(TOO_SMALL) == []
    assert page.evaluate(SMALL_TEXT) == []
    assert page.evaluate(COVERED) == 0
    one_line = page.locator("#text").evaluate("each => each.offsetHeight")
    assert one_line < 60
    page.locator("#text").fill("line\n" * 60)
    assert one_line < page.locator("#text").evaluate("each => each.offsetHeight") < 740 / 2
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert accessibility_problems(page) == []
