"""Reading a conversation: scroll position, batched updates, older messages and tabs."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from executors_app.models import ExecutorRunning
from sessions_app.models import TaskSession
from sessions_app.stream import views as conversation
from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import NO_SOCKET, hold_updates, navigating, reported
from tests.pages.world import World, asks, ingest_lines, make_world, path_of, supervise
from tests.stream.pages.test_browser_socket import ServerSide
from tests.waiting import eventually, settled

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

TELEPHONE = {"width": 390, "height": 844}
DRAWN = """() => {
  window.drawn = {frames: 0, removed: 0, measured: 0};
  new MutationObserver((all) => all.forEach((one) => {
    window.drawn.removed += [...one.removedNodes].filter((node) => node.nodeType === 1).length;
  })).observe(document.getElementById("messages"), {subtree: true, childList: true, characterData: true});
  const talk = document.getElementById("talk"), measure = talk.getBoundingClientRect;
  talk.getBoundingClientRect = () => { window.drawn.measured += 1; return measure.call(talk); };
  const count = () => { window.drawn.frames += 1; requestAnimationFrame(count); };
  requestAnimationFrame(count);
}"""


@pytest.fixture
def world(browser: Browser) -> World:
    supervise()
    return make_world()


def talk(session: TaskSession, count: int, words: str = "paragraph\n\n" * 4) -> None:
    for number in range(count):
        tool = {"kind": "tool.call", "tool_call_id": uuid.uuid4().hex, "title": "Look", "status": "completed"}
        ingest_lines(session, {"kind": "message.agent", "text": f"Answer {number}. {words}"}, tool)


def is_at_end(page: Page) -> bool:
    return bool(page.evaluate("innerHeight + scrollY >= document.documentElement.scrollHeight - 40"))


def test_reader_at_the_end_follows_and_others_see_a_count(visit: Any, world: World) -> None:
    session = world.running_session()
    talk(session, 12)
    page = visit().open(path_of(session))
    expect(page.get_by_text("Answer 11.")).to_be_in_viewport()
    talk(session, 1)
    expect(page.locator(".message.agent")).to_have_count(13)
    eventually(lambda: is_at_end(page), describe="the page follows the output")

    page.evaluate("scrollTo(0, 0)")
    bar = page.locator("#to-end button")
    expect(bar).to_be_visible()
    expect(bar).to_have_text("Jump to the end ↓")
    talk(session, 2)
    expect(bar).to_have_text("4 new ↓")  # two answers, two tool calls
    assert page.evaluate("scrollY") == 0, "reading elsewhere, the user is not scrolled"
    bar.click()
    eventually(lambda: is_at_end(page), describe="the end is shown")
    expect(bar).to_be_hidden()


def test_rapid_updates_are_rendered_once_per_frame(visit: Any, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, {"kind": "message.agent", "text": "First **paragraph**.\n\nSecond"})
    page = visit().page
    far = ServerSide(page, session)
    with page.expect_response("**/live/**"):
        page.goto(path_of(session))
    eventually(lambda: reported(page, far.sockets), describe="the page is connected")
    hold_updates(page)
    session.refresh_from_db()
    message = session.messages.get(role="agent")
    frame = {"type": "event", "event": "session.message.updated", "epoch": session.epoch, "session_id": str(session.id)}
    page.evaluate(DRAWN)
    page.evaluate("window.first = document.querySelector('.message.agent .as-written')")
    for number in range(1000):
        payload = {"message_id": str(message.id), "append": f" {number}"}
        far.sockets[-1].send(json.dumps({**frame, "seq": session.last_seq + 1 + number, "payload": payload}))
    # What an agent is still saying is shown as it is; it is formatted when the message is complete.
    growing = page.locator(".message.agent .as-written").first
    text = "First **paragraph**. Second" + "".join(f" {number}" for number in range(1000))
    expect(growing).to_have_text(text)
    drawn = page.evaluate("window.drawn")
    assert drawn["removed"] == 0
    assert drawn["measured"] <= 6 * drawn["frames"] + 6, "layout is measured per frame, not per update"
    assert page.evaluate("window.first.isConnected"), "existing nodes are kept"

    page.unroute("**/live/**")  # and the server's rendering replaces only what differs
    TaskSession.objects.update(last_seq=session.last_seq + 1000)
    ingest_lines(session, {"kind": "message.agent", "text": " and **bold**"})
    far.tell(session.last_seq + 1000)
    expect(growing).to_have_text("First **paragraph**. Second and **bold**")
    assert page.evaluate("window.first.isConnected")


def test_older_messages_load_in_pages_and_links_target_one(
    visit: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "PAGE_SIZE", 8)
    monkeypatch.setattr(conversation, "MESSAGES_AFTER_TARGET", 2)
    session = world.running_session()
    talk(session, 14)
    ada = visit()
    page = ada.open(path_of(session))
    expect(page.locator(".message")).to_have_count(8)
    first = page.locator(".message").first
    page.evaluate("scrollTo(0, 0)")
    before = first.bounding_box()
    key = first.get_attribute("id")
    page.get_by_role("link", name="Earlier messages").click()
    expect(page.locator(".message")).to_have_count(16)
    after = settled(lambda: page.locator(f"#{key}").bounding_box())
    assert before is not None and after is not None
    assert abs(before["y"] - after["y"]) < 60, "the text that is read stays in place"
    for count in (24, 29):
        page.get_by_role("link", name="Earlier messages").click()
        expect(page.locator(".message")).to_have_count(count)
    expect(page.get_by_role("link", name="Earlier messages")).to_have_count(0)

    link = page.locator(".message.agent .at").first.get_attribute("href")
    page.goto(f"{path_of(session)}{link}")
    expect(page.get_by_text("Answer 0.")).to_be_in_viewport()
    expect(page.get_by_role("link", name="Back to the newest messages")).to_be_visible()
    assert ada.unexpected(*NO_SOCKET) == []


def test_open_page_holds_a_limited_number_of_messages_without_a_gap(
    visit: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "PAGE_SIZE", 4)
    monkeypatch.setattr(conversation, "PAGES_HELD", 3)
    session = world.running_session()
    talk(session, 10)
    ada = visit()
    page = ada.open(path_of(session))
    messages, earlier = page.locator(".message"), page.get_by_role("link", name="Earlier messages")
    for count in (8, 12):
        earlier.click()
        expect(messages).to_have_count(count)
    with navigating(page):
        earlier.click()
    expect(messages).to_have_count(4)
    expect(page.get_by_role("link", name="Back to the newest messages")).to_be_visible()

    page.goto(path_of(session))
    expect(messages).to_have_count(4)
    talk(session, 8)
    expect(page.get_by_text("Answer 7.")).to_have_count(1)
    newest = list(session.messages.order_by("-seq").values_list("seq", flat=True))
    eventually(lambda: _seqs(page)[-1:] == newest[:1], describe="the newest message is shown")
    assert 4 <= len(_seqs(page)) <= 12
    shown = len(_seqs(page))
    page.evaluate("scrollTo(0, 0)")
    earlier.click()
    expect(messages).to_have_count(shown + 4)
    assert _seqs(page) == newest[: shown + 4][::-1]
    assert ada.unexpected(*NO_SOCKET) == []


def test_page_of_a_reader_away_from_the_end_holds_a_limited_number_of_messages(
    visit: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "PAGE_SIZE", 20)
    monkeypatch.setattr(conversation, "PAGES_HELD", 2)
    session = world.running_session()
    talk(session, 20)
    ada = visit()
    page = ada.open(path_of(session))
    messages = page.locator("#messages > .message")
    expect(messages).to_have_count(20)
    page.evaluate("scrollTo(0, 0)")
    expect(page.locator("#to-end")).to_be_visible()
    before = _seqs(page)
    for _ in range(3):
        talk(session, 10)
        _wait_for_newest(page, session)
    expect(messages).to_have_count(40)
    expect(page.locator("#to-end")).to_contain_text("new")
    shown = _seqs(page)
    everything = list(session.messages.order_by("seq").values_list("seq", flat=True))
    first = everything.index(shown[0])
    assert shown == everything[first : first + 40], "there is no gap"
    assert set(before) <= set(shown), "what is read stays"
    assert accessibility_problems(page) == []
    with navigating(page):
        page.get_by_role("link", name="Newer messages").click()
    expect(messages).to_have_count(20)
    assert _seqs(page) == everything[-20:]
    assert ada.unexpected(*NO_SOCKET) == []


def test_steps_of_a_call_that_was_forgotten_stay_on_the_page(
    visit: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "PAGE_SIZE", 4)
    monkeypatch.setattr(conversation, "PAGES_HELD", 2)
    session = world.running_session()
    call = {"kind": "tool.call", "tool_call_id": "t", "title": "Explore", "status": "in_progress"}
    ingest_lines(session, call)
    ada = visit()
    page = ada.open(path_of(session))
    messages = page.locator(".message")
    for number in range(8):  # with the last one, the page forgets the call
        step = {**call, "tool_call_id": f"s{number}", "title": f"Step {number}", "parent_tool_call_id": "t"}
        ingest_lines(session, step, {**call, "tool_call_id": f"own{number}", "title": f"My own {number}"})
        expect(messages.get_by_text(f"My own {number}", exact=True)).to_be_visible()
    newest = list(session.messages.order_by("-seq").values_list("seq", flat=True))
    eventually(lambda: 4 <= len(_seqs(page)) <= 8, describe="the page has forgotten the oldest messages")
    page.evaluate("scrollTo(0, 0)")
    shown = sorted(_seqs(page), reverse=True)
    assert shown == newest[: len(shown)]
    page.get_by_role("link", name="Earlier messages").click()
    expect(messages).to_have_count(len(shown) + 4)
    assert sorted(_seqs(page), reverse=True) == newest[: len(shown) + 4]
    assert ada.unexpected(*NO_SOCKET) == []


def _wait_for_newest(page: Page, session: TaskSession) -> None:
    newest = session.messages.order_by("-seq").values_list("seq", flat=True)[0]
    received = "Number(document.getElementById('session').dataset.shownSeq ?? 0)"
    eventually(lambda: page.evaluate(received) >= newest, describe="the page knows the newest message")


def _seqs(page: Page) -> list[int]:
    seqs: list[int] = page.evaluate("[...document.querySelectorAll('.message')].map((one) => Number(one.dataset.seq))")
    return seqs


STATES: dict[str, Any] = {
    "nothing yet": lambda world: world.session(prompt=""),
    "at work": lambda world: world.running_session(),
    "resting": lambda world: world.resting_session(resume_token="t"),
    "not resumable": lambda world: world.resting_session(),
    "workspace starts": lambda world: _with(world.running_session(), "starting"),
    "executor failed": lambda world: _with(world.resting_session(resume_token="t"), "error"),
    "asks": lambda world: _asking(world.running_session()),
}


def _with(session: TaskSession, status: str) -> TaskSession:
    ExecutorRunning.objects.update(status=status)
    return session


def _asking(session: TaskSession) -> TaskSession:
    ingest_lines(session, asks(raw_input={"command": "make test"}))
    session.prompts.create(message_id="held", text="Deploy it.", state="held")
    return session


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_panels_of_every_state_are_readable_on_a_phone(
    scheme: str, visit: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = visit(viewport=TELEPHONE, color_scheme=scheme)
    for name, make in STATES.items():
        TaskSession.objects.update(policy="manual")
        session = make(world)
        TaskSession.objects.filter(id=session.id).update(policy="manual")
        page = ada.open(path_of(session))
        for panel in page.get_by_role("tab").all():
            panel.click()
            expect(page.locator(f"#{panel.get_attribute('aria-controls')}")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE["width"], (name, panel)
        assert accessibility_problems(page, name) == []
        page.get_by_role("tab", name="Chat").click()
        assert accessibility_problems(page, name) == []
    assert ada.unexpected(*NO_SOCKET, "503", "404") == []


def test_arrow_keys_switch_tabs_and_question_links_open_their_panel(visit: Any, world: World) -> None:
    session = _asking(world.running_session())
    page = visit(viewport=TELEPHONE).open(path_of(session))
    page.get_by_role("tab", name="Chat").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Session")).to_be_focused()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    expect(page.get_by_label("Your prompt")).to_be_hidden()
    page.reload()
    expect(page.get_by_role("tab", name="Session")).to_have_attribute("aria-selected", "true")
    page.evaluate("scrollTo(0, 200)")
    at = page.evaluate("scrollY")
    talk(session, 3)
    expect(page.locator(".message.agent")).to_have_count(3)
    assert page.evaluate("scrollY") == at, "output behind another tab does not scroll"
    page.get_by_role("link", name="Answer").click()
    expect(page.get_by_role("button", name="Allow once")).to_be_in_viewport()
    page.set_viewport_size({"width": 1280, "height": 800})
    expect(page.get_by_role("tab", name="Chat")).to_be_hidden()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    expect(page.get_by_label("Your prompt")).to_be_visible()
