"""The control plane is restarted from its own page while a real agent is working."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.pages.browsers import SERVER_AWAY
from tests.pages.people import Place, path_of

pytestmark = pytest.mark.browser

STAFF = "from django.contrib.auth.models import User; User.objects.filter(username='driller').update(is_staff=True)"


@pytest.fixture(scope="module")
def place(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("place"), browser)
    yield made
    made.deployment.close()


def test_control_plane_restart_from_the_page_keeps_the_agent_running(
    place: Place, picture: Callable[[Page, str], None]
) -> None:
    place.shell(STAFF)
    session = place.start("work 600", "Count while it restarts")
    with place.visiting() as visit:
        page = visit.open(path_of(session))
        expect(page.locator(".message.agent > :is(.prose, .as-written)")).to_contain_text("tick 2")
        before = session.lasting_pids()
        page = visit.open("/restart/")
        page.get_by_role("button", name="Restart Kandev now").click()
        notice: Any = page.get_by_text("1 agent kept running.")
        expect(notice).to_be_visible()
        expect(page.locator(".steps > .done")).to_have_count(4)
        picture(page, "restart")
        page.get_by_role("link", name="Count while it restarts").click()
        notice = page.locator(".entry", has_text="The agent was still running; reconnected")
        expect(notice).to_be_visible()
        expect(page.locator(".entry", has_text="Reattached: the same process (verified)")).to_be_visible()
        picture(page, "timeline")
        page = visit.open("/")
        expect(page.get_by_role("link", name="1 reattached")).to_be_visible()
        assert visit.unexpected(*SERVER_AWAY) == []
        assert before
        assert before <= session.lasting_pids(), "the processes are the same ones"
