"""The inbox in a real browser: keyboard, live updates, and reports of whether a page is visible."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from sessions_app.models import AttentionMark, TaskSession
from tests.attention.raising import raise_item_of, resolve_items_of
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import NO_SOCKET, navigating
from tests.pages.world import World, make_world, path_of, supervise
from tests.waiting import eventually

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

WATCH = """async () => {
  const { tellPresence } = await import("/static/kandev/presence.js");
  window.told = [];
  window.look = tellPresence((here) => window.told.push(here));
  window.look();
  window.dispatchEvent(new Event("keydown"));
  Object.defineProperty(document, "hidden", { value: true, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
  document.dispatchEvent(new Event("visibilitychange"));
  Object.defineProperty(document, "hidden", { value: false, configurable: true });
  window.dispatchEvent(new Event("keydown"));
  return window.told;
}"""


@pytest.fixture
def world(browser: Browser) -> World:
    supervise()
    return make_world()


def test_inbox_works_by_keyboard_and_updates_itself(visit: Any, world: World) -> None:
    session = world.running_session()
    first, second = raise_item_of(session, "gave_up"), raise_item_of(session, "held", "two")
    ada = visit()
    page = ada.open("/attention/")
    number = page.locator("#attention-count")
    expect(number).to_have_text("2")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="What one")).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("e")
    expect(number).to_have_text("1")
    expect(page.get_by_text("Seen, still open")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("d")
    expect(page.get_by_role("link", name="What two")).to_have_count(0)
    expect(number).to_be_hidden()
    eventually(lambda: AttentionMark.objects.filter(item=second, dismissed_at__isnull=False).exists())
    assert AttentionMark.objects.get(item=first).dismissed_at is None

    raise_item_of(session, "permission", "three")
    expect(page.get_by_role("link", name="What three")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    assert accessibility_problems(page) == []
    resolve_items_of(session)
    expect(page.get_by_text("Nothing needs you")).to_be_visible()
    assert ada.unexpected(*NO_SOCKET) == []


def test_inbox_item_opens_a_session_that_explains_its_idleness(visit: Any, world: World) -> None:
    session = world.running_session()
    session.runs.all().delete()
    TaskSession.objects.filter(id=session.id).update(state="WAITING_FOR_INPUT", work_state="idle")
    raise_item_of(session, "idle")
    ada = visit()
    page = ada.open("/attention/")
    with navigating(page):
        page.get_by_role("link", name="Open session").click()
    expect(page).to_have_url(f"{page.url.split('/tasks/')[0]}{path_of(session)}")
    expect(page.locator("#situation")).to_contain_text("Send a prompt to continue.")
    expect(page.locator("#policy")).to_contain_text("Default for this installation.")
    page.locator("summary", has_text="After a restart").click()
    page.get_by_label("Start the agent automatically").select_option("manual")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#policy")).to_contain_text("Chosen for this session.")
    assert ada.unexpected(*NO_SOCKET) == []


def test_page_reports_lost_and_regained_visibility_once(visit: Any, world: World) -> None:
    page = visit().open("/")
    assert page.evaluate(WATCH) == [True, False, True]


def test_notification_settings_have_no_accessibility_violations(visit: Any, world: World) -> None:
    page = visit().open("/settings/notifications/")
    expect(page.get_by_role("heading", name="New webhook")).to_be_visible()
    assert accessibility_problems(page) == []


SAY_WHILE_CLOSING = """async () => {
  const sent = [];
  const original = window.WebSocket;
  let socket;
  window.WebSocket = class SocketThatIsSlowToClose {
    static OPEN = 1;
    readyState = 1;
    constructor() { socket = this; }
    send(frame) { sent.push(frame); }
    close() { this.readyState = 2; }
  };
  const { listen } = await import("/static/kandev/live.js");
  const news = listen({ path: () => "/slow", onFrame() {}, onEnd() {} });
  socket.onmessage({ data: '{"type": "hello"}' });
  const before = news.request("here", {});
  news.renew();
  const after = news.request("here", {});
  window.WebSocket = original;
  return { before, after, sent: sent.length };
}"""


def test_closing_socket_gets_no_messages(visit: Any, world: World) -> None:
    ada = visit()
    page = ada.open("/attention/")
    assert page.evaluate(SAY_WHILE_CLOSING) == {"before": True, "after": False, "sent": 1}
