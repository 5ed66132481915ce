"""The processes that turns have left running, in a real browser: what a stop would end, and the policy for them."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, expect

from sessions_app.models import BackgroundWork, TaskSession
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import NO_SOCKET
from tests.pages.world import World, first_prompt, ingest_lines, make_world, path_of, supervise
from tests.waiting import eventually

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def world(browser: Browser) -> World:
    supervise()
    return make_world()


def with_processes(world: World) -> TaskSession:
    session = world.running_session()
    since = "2026-01-31T12:00:00+00:00"
    commands = ("npm run dev", "python -m http.server 8000 --directory build/documentation/html")
    listed = [{"command": command, "since": since, "cpu_seconds": 75.5} for command in commands]
    done = {"kind": "turn.completed", "message_id": first_prompt(session).message_id}
    report = {"kind": "agent.processes", "processes": listed, "count": 5, "cpu_seconds": 180.0, "complete": True}
    ingest_lines(session, done, report)
    BackgroundWork.objects.update(reported_at=timezone.now())
    return session


def test_page_shows_what_runs_and_takes_the_policy(visit: Any, world: World) -> None:
    session = with_processes(world)
    ada = visit()
    page = ada.open(path_of(session))
    processes = page.locator("#processes")
    expect(processes).to_contain_text("Processes of the agent that still run")
    expect(processes).to_contain_text("npm run dev")
    expect(processes).to_contain_text("CPU 1 min 15 s")
    expect(processes).to_contain_text("CPU time of all: 3 min 0 s. They keep the session awake. Default for")
    assert accessibility_problems(page) == []

    page.locator("summary", has_text="Processes left running").click()
    page.get_by_label("When the session is idle").select_option("end")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#processes")).to_contain_text("They end when the session falls asleep.")
    eventually(lambda: BackgroundWork.objects.get(session=session).policy == "end")
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert ada.unexpected(*NO_SOCKET) == []


def test_selection_names_what_a_stop_would_end(visit: Any, world: World) -> None:
    session = with_processes(world)
    ada = visit()
    page = ada.open("/")
    page.locator(f"input[value='{session.id}']").check()
    expect(page.locator("#bulk-count")).to_have_text(
        "1 selected; stopping ends 5 processes that agents have left running: npm run dev; "
        "python -m http.server 8000 --directory build/documentation/html; 3 more"
    )
    assert ada.unexpected(*NO_SOCKET) == []
