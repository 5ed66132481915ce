"""External waits in a real browser: by keyboard, on a phone, without JavaScript; and a busy database."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect

from sessions_app.prompts import services as prompts
from sessions_app.waits.rules.wait_keys import WaitKind
from sessions_app.waits.services import open_wait
from tests.api.world import client_of
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import NO_SOCKET, navigating
from tests.pages.world import World, make_world, path_of, supervise

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
TELEPHONE = {"viewport": {"width": 360, "height": 740}}


@pytest.fixture
def world(browser: Browser) -> World:
    supervise()
    return make_world()


def key_of(page: Page) -> str:
    return str(page.get_by_label("Key", exact=True).input_value())


def fits(page: Page) -> bool:
    """Return whether nothing is wider than the screen."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def test_wait_can_be_opened_rotated_and_ended_by_keyboard(visit: Any, world: World) -> None:
    session, ada = world.resting_session(resume_token="t"), visit()
    page = ada.open(path_of(session))
    page.evaluate("window.stayed = true")
    page.locator("#new-wait summary").focus()
    for key in ("Enter", "Tab"):
        page.keyboard.press(key)
    page.keyboard.type("The build of main")
    page.keyboard.press("Enter")

    expect(page.get_by_role("heading", name="Key for this wait")).to_be_focused()
    first = key_of(page)
    expect(page.locator("#part-waits")).to_contain_text("The build of main")
    expect(page.locator("#new-wait")).to_be_hidden()
    assert accessibility_problems(page) == []

    page.get_by_role("button", name="New key").press("Enter")
    expect(page.get_by_label("Key", exact=True)).not_to_have_value(first)
    page.get_by_role("button", name="Done").press("Enter")
    expect(page.locator("#wait-key")).to_be_hidden()
    expect(page.locator("#part-waits button").first).to_be_focused()

    page.get_by_role("button", name="End the wait").press("Enter")
    expect(page.get_by_role("button", name="End the wait")).to_have_count(0)
    expect(page.locator("#new-wait")).to_be_visible()
    page.locator("#part-waits summary").press("Enter")
    expect(page.locator(".past-waits")).to_contain_text("Revoked The build of main")
    assert page.evaluate("window.stayed")
    assert ada.unexpected(*NO_SOCKET) == []


def test_copied_wait_key_and_displayed_call_work_on_a_phone(visit: Any, world: World) -> None:
    session, ada = (
        world.resting_session(resume_token="t"),
        visit(**TELEPHONE, permissions=["clipboard-read", "clipboard-write"]),
    )
    page = ada.open(path_of(session))
    page.get_by_role("tab", name="Session").click()
    page.locator("#new-wait summary").click()
    page.get_by_label("What to wait for").fill("The release")
    page.get_by_label("Kind").select_option("An approval")
    page.get_by_label("Until").select_option("In a day")
    page.get_by_role("button", name="Start waiting").click()
    page.get_by_role("button", name="Copy key").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == key_of(page)
    assert fits(page)

    call = page.locator("#key-call").inner_text()
    body = json.loads(call[call.index("{") : call.rindex("}") + 1])
    assert client_of(None).post("/api/v1/runs/resume/", body, format="json").status_code == 200
    expect(page.get_by_role("button", name="End the wait")).to_have_count(0)
    assert json.loads(session.prompts.get(kind="wait").text) == {"approved": True}


def test_wait_key_has_its_own_page_without_javascript(visit: Any, world: World) -> None:
    session = world.resting_session(resume_token="t")
    page = visit(java_script_enabled=False, **TELEPHONE).open(path_of(session))
    page.locator("#new-wait summary").click()
    page.get_by_label("What to wait for").fill("The release")
    with navigating(page):
        page.get_by_role("button", name="Start waiting").click()
    expect(page.get_by_label("Key", exact=True)).to_have_value(session.wait_keys.get().secret() or "")
    expect(page.get_by_role("button", name="Copy key")).to_be_hidden()
    page.get_by_role("link", name="Back to the session").click()
    expect(page.locator("#part-waits")).to_contain_text("The release")


def test_busy_database_is_reported_and_the_prompt_text_kept(
    visit: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*args: Any, **kwargs: Any) -> None:
        raise OperationalError("database is locked")

    session = world.running_session()
    page = visit().open(path_of(session))
    page.get_by_label("Your prompt").fill("Deploy it.")
    with monkeypatch.context() as patch:
        patch.setattr(prompts, "queue_prompt", busy)
        page.get_by_role("button", name="Send", exact=True).click()
        expect(page.locator("#problem")).to_contain_text("Try again in a moment.")
    expect(page.get_by_label("Your prompt")).to_have_value("Deploy it.")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_label("Your prompt")).to_have_value("")
    assert session.prompts.filter(text="Deploy it.").count() == 1


def test_list_of_waits_shows_times_in_the_zone_of_the_reader(visit: Any, world: World) -> None:
    session = world.resting_session(resume_token="t")
    open_wait(session.id, "The release", timezone.now() + timedelta(hours=1), world.ada, WaitKind.EXTERNAL)
    page = visit(timezone_id="America/New_York").open("/waits/")
    for fact in ("Open for", "Deadline"):
        time = page.locator(".facts > div", has_text=fact).locator("time")
        expect(time).to_have_count(1)
        expect(time).not_to_contain_text("UTC")
    assert fits(page)
