"""A page with a failed asset reloads a few times, but never where typed text would be lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.pages.world import World, ingest_lines, make_world, path_of, supervise
from tests.waiting import eventually

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

LACKING = "Part of this page could not be loaded."
RELOADS = 4
"""How often a page reloads itself."""
TYPE = "addEventListener('DOMContentLoaded', () => { document.querySelector('#text').value = 'Half a thought'; })"
PARTS = {
    "its script": re.compile(r"/(pages/session|built/session-\w+)\.js$"),
    "its style sheet": re.compile(r"/(pages/session|built/session-\w+)\.css$"),
}


@pytest.fixture
def world(browser: Browser) -> World:
    supervise()
    return make_world()


def failing(page: Page, part: str | re.Pattern[str], refuse: Callable[[int], bool]) -> list[int]:
    """Fail requests for ``part`` whose number ``refuse`` accepts; return the numbers of all requests so far."""
    requests: list[int] = []

    def answer(route: Route) -> None:
        requests.append(len(requests))
        if refuse(requests[-1]):
            route.abort()
        else:
            route.continue_()

    page.route(part, answer)
    return requests


def loads_of(page: Page) -> list[str]:
    """Return a list that grows by one with each page load."""
    seen: list[str] = []
    page.on("domcontentloaded", lambda loaded: seen.append(loaded.url))
    return seen


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_page_reloads_itself_after_a_failed_asset(part: re.Pattern[str], visit: Any, world: World) -> None:
    session, page = world.running_session(), visit().page
    loads, requests = loads_of(page), failing(page, part, lambda number: number == 0)
    page.goto(path_of(session))
    eventually(lambda: page.wait_for_timeout(50) or len(loads) == 2, describe="the page reloads")
    ingest_lines(session, {"kind": "message.agent", "text": "Here I am."})
    expect(page.get_by_text("Here I am.")).to_be_visible()
    expect(page.get_by_text(LACKING)).to_be_hidden()
    assert len(requests) == 2
    eventually(lambda: page.evaluate("sessionStorage.length") == 0, describe="the page forgets its attempts")


def test_persistently_failing_asset_is_reported_after_a_few_reloads(visit: Any, world: World) -> None:
    session, page = world.running_session(), visit().page
    loads, requests = loads_of(page), failing(page, PARTS["its script"], lambda number: number <= RELOADS)
    page.goto(path_of(session))
    eventually(
        lambda: page.wait_for_timeout(50) or len(loads) == 1 + RELOADS,
        timeout=60,
        describe="the page makes all its attempts",
    )
    expect(page.get_by_role("alert")).to_contain_text(LACKING)
    eventually(lambda: page.evaluate("sessionStorage.length") == 0, describe="the page gives up")
    page.get_by_role("button", name="Reload").click()
    ingest_lines(session, {"kind": "message.agent", "text": "Here I am."})
    expect(page.get_by_text("Here I am.")).to_be_visible()
    eventually(lambda: page.wait_for_timeout(50) or len(loads) == 2 + RELOADS, describe="the page was loaded again")
    assert len(requests) == 2 + RELOADS


def test_page_waits_for_a_server_that_disappeared_while_loading(visit: Any, world: World) -> None:
    session, page = world.running_session(), visit().page
    away = True
    loads = loads_of(page)
    everything = failing(page, "**/static/**", lambda _: away)
    looks = failing(page, "**/healthz", lambda _: away)
    page.goto(path_of(session))
    eventually(
        lambda: page.wait_for_timeout(50) or len(looks) >= 2,
        describe="the page checks whether the server answers",
    )
    assert everything
    assert len(loads) == 1, "the page does not reload while the server is away"
    away = False
    eventually(lambda: page.wait_for_timeout(50) or len(loads) == 2, describe="the page reloads")
    ingest_lines(session, {"kind": "message.agent", "text": "Here I am."})
    expect(page.get_by_text("Here I am.")).to_be_visible()


def test_automatic_reload_never_discards_typed_text(visit: Any, world: World) -> None:
    session, page = world.running_session(), visit().page
    loads, requests = loads_of(page), failing(page, PARTS["its script"], lambda number: number == 0)
    looks = failing(page, "**/healthz", lambda _: False)
    page.add_init_script(TYPE)
    page.clock.install()
    page.goto(path_of(session))
    expect(page.get_by_role("alert")).to_contain_text(LACKING)
    page.clock.run_for(60_000)
    expect(page.get_by_label("Your prompt")).to_have_value("Half a thought")
    assert (len(loads), len(requests), len(looks)) == (1, 1, 0)
