"""The cost of a resume on a session's page, in a real browser: on a phone, in the dark theme, and after the resume."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from sessions_app.models import session_transaction
from tests.pages.browsers import navigating
from tests.pages.world import World, make_world, path_of, supervise

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def world(browser: Browser) -> World:
    supervise()
    return make_world()


def test_cost_of_a_resume_is_shown_before_it_and_with_its_receipt(visit: Any, world: World) -> None:
    session = world.resting_session(resume_token="t", status_reason="idle")
    session.runs.update(usage={"context_used": 62_310, "context_size": 200_000})
    page = visit(viewport={"width": 360, "height": 740}, color_scheme="dark", timezone_id="America/New_York").open(
        path_of(session)
    )
    cost = page.locator("#resume-cost")
    expect(cost).to_contain_text("62,310 tokens when the agent last reported its size")
    expect(cost).to_contain_text("How much of it the provider still has in its cache is unknown")
    expect(cost.locator("time").first).not_to_contain_text("UTC")
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 360, "nothing is wider than the screen"
    banner = page.get_by_role("region", name="What to know")
    expect(banner.get_by_role("button", name="Resume session")).to_be_visible()

    with session_transaction(session.id) as transaction:
        transaction.write_receipt("loaded", "replay", launch_id="second")
        transaction.move_executor("launch")
        transaction.move_executor("ready")
        transaction.set_fields(launch_id="second")
    with session_transaction(session.id) as transaction:
        turn = transaction.start_run("second-prompt")
        transaction.note_turn(turn, usage={"input_tokens": 9, "cached_tokens": 61_000})
        transaction.move_run("complete")
    expect(cost).to_have_count(0)
    page.get_by_role("tab", name="Session").click()
    page.get_by_text("Restarts and resumes").click()
    receipts = page.locator(".receipts")
    expect(receipts).to_contain_text("9 input tokens, 61,000 tokens read from a cache")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360, "nothing is wider than the screen"
    with navigating(page):
        receipts.get_by_role("link", name="Show the turn").click()
    expect(page.get_by_text("Back to the newest messages")).to_be_visible()
