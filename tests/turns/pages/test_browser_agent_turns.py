"""Work that an agent began is shown on its session's page while it lasts, and holds prompts, in a real browser."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from executors_app.wire.protocol import JournalKind
from sessions_app.models import TaskSession, session_transaction
from tests.pages.browsers import NO_SOCKET
from tests.pages.world import NOON, World, first_prompt, ingest_lines, make_world, path_of, supervise

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
OWN_WORK = "The agent is working on its own."
HELD = "Prompts are delivered when that work ends. To deliver them now, cancel the turn."


@pytest.fixture
def world(browser: Browser) -> World:
    supervise()
    return make_world()


@pytest.fixture
def resting(world: World) -> TaskSession:
    """Return a session whose agent is up, and whose first turn has ended."""
    session = world.running_session()
    ended = {"kind": "turn.completed", "message_id": first_prompt(session).message_id, "stop_reason": "end_turn"}
    ingest_lines(session, ended)
    return session


def begin_own_work(session: TaskSession) -> None:
    ingest_lines(session, {"kind": "message.agent", "text": "The build has ended.", "ts": NOON + 60})


def end_own_work(session: TaskSession) -> None:
    ingest_lines(session, {"kind": JournalKind.AGENT_TURN_ENDED, "ts": NOON + 61})


def send_by_keyboard(page: Page, text: str) -> None:
    composer = page.get_by_label("Your prompt")
    composer.fill(text)
    composer.press("Control+Enter")
    expect(composer).to_have_value("")


def test_work_that_the_agent_begins_appears_on_an_open_page_and_holds_a_prompt(
    visit: Any, resting: TaskSession
) -> None:
    ada = visit()
    page = ada.open(path_of(resting))
    banner, strip = page.locator("#part-banner"), page.locator(".strip")
    expect(strip).not_to_contain_text("Working")
    begin_own_work(resting)
    expect(strip).to_contain_text("Working")
    expect(banner).to_contain_text(OWN_WORK)
    expect(page.get_by_role("button", name="Send now")).to_have_count(0)
    send_by_keyboard(page, "next")
    expect(page.locator("#queue li")).to_contain_text("next")
    expect(banner).to_contain_text(OWN_WORK)
    expect(banner).to_contain_text(HELD)
    end_own_work(resting)
    expect(strip).not_to_contain_text("Working")
    expect(banner).not_to_contain_text(OWN_WORK)
    expect(banner).not_to_contain_text(HELD)
    expect(page.locator("#queue li")).to_contain_text("next")
    assert ada.unexpected(*NO_SOCKET) == []


def test_held_prompt_leaves_the_queue_once_it_is_sent(visit: Any, resting: TaskSession) -> None:
    begin_own_work(resting)
    page = visit().open(path_of(resting))
    send_by_keyboard(page, "next")
    expect(page.locator("#queue li")).to_contain_text("next")
    end_own_work(resting)
    prompt = resting.prompts.get(text="next")
    with session_transaction(resting.id) as transaction:
        transaction.move_prompt(prompt, "send")
    ingest_lines(resting, {"kind": "prompt.accepted", "message_id": prompt.message_id, "text": "next"})
    ingest_lines(resting, {"kind": "prompt.delivered", "message_id": prompt.message_id})
    expect(page.locator("#queue")).to_have_count(0)
    expect(page.locator("#messages")).to_contain_text("next")
    expect(page.locator(".strip")).to_contain_text("Working")


def test_cancel_of_such_work_can_be_requested_on_the_page(visit: Any, resting: TaskSession) -> None:
    begin_own_work(resting)
    page = visit().open(path_of(resting))
    send_by_keyboard(page, "next")
    expect(page.locator("#part-banner")).to_contain_text(HELD)
    with page.expect_response("**/cancel/"):
        page.locator("#part-controls").get_by_role("button", name="Cancel turn").press("Enter")
    assert resting.intents.filter(kind="cancel").exists()
    end_own_work(resting)
    expect(page.locator("#part-banner")).not_to_contain_text(OWN_WORK)
    expect(page.locator(".strip")).not_to_contain_text("Working")
    expect(page.locator("#queue li")).to_contain_text("next")
