"""How a page handles its WebSocket frames; the test plays the server's side."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, WebSocketRoute, expect

from sessions_app.models import TaskSession
from sessions_app.timeline.services import event_json
from tests.pages.browsers import hold_updates, reported
from tests.pages.world import World, first_prompt, ingest_lines, make_world, path_of, supervise
from tests.waiting import eventually

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def world(browser: Browser) -> World:
    supervise()
    return make_world()


class ServerSide:
    """The server's side of the sockets that one page opens, one after another."""

    def __init__(self, page: Page, session: TaskSession):
        self.session, self.sockets = session, list[WebSocketRoute]()
        page.route_web_socket("**/ws/**", self._welcome)

    def _welcome(self, socket: WebSocketRoute) -> None:
        self.session.refresh_from_db()
        hello = {"type": "hello", "epoch": self.session.epoch, "last_seq": self.session.last_seq}
        socket.send(json.dumps(hello))
        self.sockets.append(socket)

    def tell(self, after: int) -> int:
        """Send every event after ``after`` and return its last seq."""
        events = list(self.session.events.filter(seq__gt=after).order_by("seq"))
        for event in events:
            self.sockets[-1].send(json.dumps(event_json(event, self.session)))
        return events[-1].seq if events else after


Talk = Callable[[], tuple[Page, ServerSide, int]]


@pytest.fixture
def talk(visit: Any, world: World) -> Talk:
    """Return a function that opens a page whose agent has said "One"; its own requests are no longer answered."""

    def begin() -> tuple[Page, ServerSide, int]:
        session = world.running_session()
        ingest_lines(session, {"kind": "message.agent", "text": "One"})
        page = visit().page
        far = ServerSide(page, session)
        with page.expect_response("**/live/**"):
            page.goto(path_of(session))
        eventually(lambda: reported(page, far.sockets), describe="the page is connected")
        expect(page.locator(".message.agent > :is(.prose, .as-written)")).to_have_text("One")
        session.refresh_from_db()
        return page, far, session.last_seq

    return begin


def test_socket_text_appears_at_once_and_only_once(talk: Talk) -> None:
    page, far, seen = talk()
    hold_updates(page)
    message = page.locator(".message.agent > :is(.prose, .as-written)")
    ingest_lines(far.session, {"kind": "message.agent", "text": " & <b>two</b>\n"})
    for _ in range(2):
        far.tell(seen)
    ingest_lines(far.session, {"kind": "message.agent", "text": "three"})
    far.tell(seen)
    text = "One & <b>two</b>\nthree"
    expect(message).to_have_text(text, use_inner_text=True)
    expect(message.locator(".appended")).to_have_count(1)
    page.unroute("**/live/**")
    page.reload()
    expect(message).to_have_text(text, use_inner_text=True)
    expect(message.locator(".appended")).to_have_count(0)


def test_socket_text_does_not_wait_for_the_next_frame(talk: Talk) -> None:
    page, far, seen = talk()
    hold_updates(page)
    page.evaluate("() => { window.requestAnimationFrame = () => 0; }")
    for word in ("two", "three"):
        ingest_lines(far.session, {"kind": "message.agent", "text": f" {word}"})
        seen = far.tell(seen)
    expect(page.locator(".message.agent > :is(.prose, .as-written)")).to_have_text("One two three")


def test_server_rendering_replaces_appended_text(talk: Talk) -> None:
    page, far, seen = talk()
    ingest_lines(far.session, {"kind": "message.agent", "text": "\n\n- **two**\n"})
    seen = far.tell(seen)
    expect(page.locator(".message.agent")).to_contain_text("- **two**")
    completed = {"kind": "turn.completed", "message_id": first_prompt(far.session).message_id}
    ingest_lines(far.session, completed)
    far.tell(seen)
    expect(page.locator(".message.agent li strong")).to_have_text("two")
    expect(page.locator(".appended")).to_have_count(0)


def test_reopened_socket_continues_after_the_last_received_event(talk: Talk) -> None:
    page, far, seen = talk()
    ingest_lines(far.session, {"kind": "message.agent", "text": " two"})
    received = far.tell(seen)
    expect(page.locator(".message.agent > :is(.prose, .as-written)")).to_have_text("One two")
    far.sockets[-1].close(code=4408)
    eventually(lambda: page.evaluate("1") and len(far.sockets) > 1, describe="the page reconnects")
    assert f"after={received}&" in far.sockets[-1].url


@pytest.mark.parametrize(("code", "words"), [(4401, "You are logged out."), (4404, "This no longer exists")])
def test_page_refused_by_the_socket_says_so_and_stops(code: int, words: str, talk: Talk) -> None:
    page, far, _ = talk()
    far.sockets[-1].close(code=code)
    expect(page.get_by_text(words)).to_be_visible()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.evaluate("async () => { window.dispatchEvent(new Event('online')); await fetch('/healthz') }")
    assert [url.rpartition("/")[2] for url in requests if not url.endswith("/attention/count/")] == ["healthz"]
    assert len(far.sockets) == 1


def test_restored_log_reloads_the_page(talk: Talk) -> None:
    page, far, _ = talk()
    TaskSession.objects.update(epoch="another")
    with page.expect_navigation():
        far.sockets[-1].send(json.dumps({"type": "hello", "epoch": "another", "last_seq": 1}))
    expect(page.locator("#session")).to_have_attribute("data-epoch", "another")
