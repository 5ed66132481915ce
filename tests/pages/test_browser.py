"""Pages in a real browser: login, prompts, live updates, keyboard, screen sizes and reconnecting."""

from __future__ import annotations

import re
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, Route, expect

from executors_app.models import ExecutorRunning
from sessions_app.accounts.models import LoginLink
from sessions_app.models import PermissionRequest, Task, TaskSession, session_transaction
from tests.pages.browsers import NO_SOCKET, navigating
from tests.pages.world import World, asks, first_prompt, ingest_lines, make_world, path_of, supervise
from tests.waiting import eventually

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

MARKDOWN = (
    "Found it:\n\n```\n" + "a very long line " * 20 + "\n```\n\n| file | line |\n|---|---|\n| `tests/login.py` | 12 |\n"
    "\n- one\n- two\n\n" + "unbreakable" * 30
)


@pytest.fixture
def world(browser: Browser) -> World:
    supervise()
    return make_world()


def busy_session(world: World) -> TaskSession:
    """Return a session with every kind of content on its page."""
    session = world.running_session()
    tool = {
        "kind": "tool.call",
        "tool_call_id": "t",
        "title": "Read a file",
        "status": "completed",
        "raw_input": "x" * 400,
    }
    plan = {"kind": "plan", "entries": [{"content": "Read", "status": "completed"}]}
    thought = {"kind": "message.thought", "text": "Hmm."}
    ingest_lines(
        session, plan, thought, {"kind": "message.agent", "text": MARKDOWN}, tool, asks(title="Run " + "x" * 90)
    )
    session.prompts.create(message_id="held", text="held " * 40, state="held")
    session.prompts.create(message_id="queued", text="queued " * 40)
    session.receipts.create(kind="reattached", verified="same_process")
    return session


def test_login_link_opens_the_board(visit: Any, browser: Browser, live_server: Any, world: World) -> None:
    context = browser.new_context(base_url=live_server.url)
    page = context.new_page()
    page.goto(f"/login/{LoginLink.mint(world.ada)}/")
    page.get_by_role("button", name="Log in as ada").click()
    expect(page.get_by_role("heading", name="Board")).to_be_visible()
    assert page.url == f"{live_server.url}/"
    context.close()


def test_prompt_is_sent_without_a_page_load_and_queued(visit: Any, world: World) -> None:
    session, ada = world.running_session(), visit()
    page = ada.open(path_of(session))
    page.evaluate("window.stayed = true")
    page.get_by_label("Your prompt").fill("And now the docs.\nAll of them.")
    page.keyboard.press("Control+Enter")

    queue = page.get_by_role("region", name="Queue")
    expect(queue).to_contain_text("And now the docs.")
    expect(page.get_by_label("Your prompt")).to_have_value("")
    assert page.evaluate("window.stayed")
    assert session.prompts.get(state="queued").text == "And now the docs.\nAll of them."
    queue.get_by_role("button", name="Withdraw").click()
    expect(queue).to_be_hidden()
    assert ada.unexpected(*NO_SOCKET) == []


WATCH_BUTTONS = """() => {
  window.appeared = [];
  new MutationObserver(() => {
    const form = document.querySelector(".asks[data-key]");
    if (form && !window.appeared.length) window.appeared.push(form.inert);
  }).observe(document.getElementById("part-permissions"), { childList: true, subtree: true });
}"""


def test_request_that_appears_on_an_open_page_takes_no_click_at_once(visit: Any, world: World) -> None:
    session = world.running_session()
    page = visit().open(path_of(session))
    page.evaluate(WATCH_BUTTONS)
    ingest_lines(session, asks())
    page.get_by_role("button", name="Allow once").click()
    assert page.evaluate("window.appeared") == [True], "it took no click when it appeared"
    expect(page.get_by_text("The answer is being sent to the agent.")).to_be_visible()


def test_agent_output_appears_live_and_only_once(visit: Any, world: World) -> None:
    session = world.running_session()
    page = visit().open(path_of(session))
    for word in ("one ", "two"):
        ingest_lines(session, {"kind": "message.agent", "text": word})
        expect(page.locator(".message.agent")).to_contain_text(word.strip())
    expect(page.locator(".message.agent > :is(.prose, .as-written)")).to_have_text("one two")
    ingest_lines(session, asks())
    page.get_by_role("button", name="Allow once").click()
    expect(page.get_by_text("The answer is being sent to the agent.")).to_be_visible()
    assert session.intents.get(kind="answer").payload["option_id"] == "allow"


def test_page_reconnects_after_the_server_was_unreachable(visit: Any, world: World) -> None:
    session, ada = world.running_session(), visit()
    page = ada.open(path_of(session))
    away = True

    def answer(route: Route) -> None:
        if away:
            route.abort()
        else:
            route.continue_()

    page.route("**/live/**", answer)
    expect(page.get_by_text("Reconnecting…")).to_be_visible()
    expect(page.locator(".strip > div:not(.wide) .pill")).to_have_text(["Reconnecting"] * 3)
    promise = page.get_by_text("Prompts you send now are queued.")
    expect(promise).to_be_hidden()
    ingest_lines(session, {"kind": "message.agent", "text": "Said meanwhile."})
    away = False
    expect(page.get_by_text("Said meanwhile.")).to_be_visible()
    expect(page.get_by_text("Reconnecting…")).to_be_hidden()
    expect(page.locator(".strip > div:not(.wide) .pill")).to_have_text(["Working", "Ready", "Running"])
    expect(promise).to_be_visible()


def test_times_have_one_format_in_every_locale(visit: Any, world: World) -> None:
    session = busy_session(world)
    Task.objects.update(created_at=datetime(2026, 3, 1, 22, 0, 24, tzinfo=UTC))
    TaskSession.objects.update(created_at=datetime(2026, 3, 1, 22, 0, 24, tzinfo=UTC))
    page = visit(locale="en-US", timezone_id="America/New_York").open(f"/tasks/{session.task_id}/")
    expect(page.locator(".rows time")).to_have_text("2026-03-01 17:00")
    assert page.locator(".rows time").get_attribute("title") == "2026-03-01 17:00:24"
    at = timezone.now() + timedelta(hours=1)
    page.clock.set_fixed_time(at)  # today, also where the next hour belongs to the next day
    TaskSession.objects.update(state="ERROR", error_code="agent_exited", next_restart_at=at, launch_id="")
    PermissionRequest.objects.all().delete()
    session.prompts.filter(state="held").delete()
    ExecutorRunning.objects.update(resume_token="t", status="error")
    page.goto(path_of(session))
    local = at.astimezone(ZoneInfo("America/New_York"))
    expect(page.locator("#part-banner time")).to_have_text(f"{local:%H:%M:%S}")
    for text in page.locator("time").all_text_contents():
        assert re.fullmatch(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d(:\d\d)?", text), text


def test_page_follows_the_agent_again_after_a_resume(visit: Any, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, {"kind": "message.agent", "text": "word\n\n" * 200})
    ingest_lines(session, {"kind": "turn.completed", "message_id": first_prompt(session).message_id})
    with session_transaction(session.id) as transaction:
        transaction.move_executor("stop")
        transaction.set_fields(launch_id="", policy="manual")
    ExecutorRunning.objects.update(resume_token="t")
    page = visit().open(path_of(session))
    page.get_by_role("button", name="Resume session").click()
    expect(page.get_by_role("button", name="Resume session")).to_be_hidden()
    for text in ("I am back. " * 300, "And I go on. " * 300):
        ingest_lines(session, {"kind": "message.agent", "text": text})
        expect(page.get_by_text(text[:10]).last).to_be_attached()
        expect(page.locator("#to-end")).to_be_hidden()
        expect(page.locator("#send")).to_be_in_viewport()


def test_prompt_with_a_lost_response_is_kept_and_sent_once(visit: Any, world: World) -> None:
    session = world.running_session()
    page = visit().open(path_of(session))

    def lose_response(route: Route) -> None:
        route.fetch()
        route.abort()

    page.route("**/prompt/", lose_response)
    page.get_by_label("Your prompt").fill("Deploy it.")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("You can safely send it again")
    expect(page.get_by_label("Your prompt")).to_have_value("Deploy it.")
    page.unroute("**/prompt/")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_label("Your prompt")).to_have_value("")
    assert session.prompts.filter(text="Deploy it.").count() == 1


def test_opening_an_idle_session_starts_its_agent_once(visit: Any, world: World) -> None:
    session = world.resting_session(resume_token="t")
    page = visit().open(path_of(session))
    eventually(
        lambda: session.intents.filter(kind="start", done_at=None).exists(), describe="the page requests a start"
    )
    expect(page.get_by_text("The agent is starting.")).to_be_visible()
    assert session.intents.filter(kind="start", done_at=None).count() == 1


def test_workspace_panel_is_inert_while_the_workspace_starts(visit: Any, world: World) -> None:
    session = world.running_session()
    page = visit().open(path_of(session))
    page.get_by_role("tab", name="Files").click()
    spinner = page.locator(".strip .spinner")
    for status, waits in (("starting", True), ("ready", False)):
        ExecutorRunning.objects.update(status=status)
        expect(spinner).to_have_count(int(waits))
        expect(page.locator("#files")).to_have_js_property("inert", waits)
        expect(page.locator("#panel-files .starting")).to_be_visible(visible=waits)


def test_two_tabs_opened_together_request_one_start(visit: Any, world: World) -> None:
    session, ada = world.resting_session(resume_token="t"), visit()
    tabs = [ada.page, ada.tab()]
    for tab in tabs:
        tab.goto(path_of(session), wait_until="commit")
    for tab in tabs:
        expect(tab.get_by_text("The agent is starting.")).to_be_visible()
    assert session.intents.filter(kind="start", done_at=None).count() == 1


def test_manual_policy_offers_a_start_without_requesting_it(visit: Any, world: World) -> None:
    session = world.resting_session(resume_token="t")
    TaskSession.objects.update(policy="manual")
    page = visit().open(path_of(session))
    with page.expect_response("**/live/**"):
        pass
    assert not session.intents.filter(kind="start", done_at=None).exists()
    page.get_by_role("button", name="Resume session").click()
    expect(page.get_by_text("The agent is starting.")).to_be_visible()
    assert session.intents.filter(kind="start", done_at=None).count() == 1


def test_older_live_response_never_replaces_a_newer_one(visit: Any, world: World) -> None:
    session = world.running_session()
    page = visit().open(path_of(session))
    with page.expect_response("**/live/**") as seen:
        pass
    older = seen.value.text()
    ingest_lines(session, {"kind": "message.agent", "text": "Done."}, asks())
    expect(page.get_by_role("button", name="Allow once")).to_be_visible()
    page.route("**/live/**", lambda route: route.fulfill(body=older, content_type="application/json"))
    with page.expect_response("**/live/**"):
        pass
    with page.expect_response("**/live/**"):
        pass  # the first has been applied, or not
    expect(page.get_by_role("button", name="Allow once")).to_be_visible()
    expect(page.locator("#part-bar").get_by_text("Asks for permission", exact=True)).to_be_visible()


def test_new_task_needs_only_a_title_and_description(visit: Any, world: World) -> None:
    page = visit().open("/")
    page.get_by_label("Title").fill("Mend the engine")
    page.get_by_label("Description").fill("Please.")
    with navigating(page):
        page.get_by_role("button", name="Create and start").click()
    expect(page.get_by_role("heading", name="Mend the engine")).to_be_visible()
    assert first_prompt(TaskSession.objects.get()).text == "Please."


@pytest.mark.parametrize("javascript", [True, False], ids=["with JavaScript", "without JavaScript"])
def test_session_actions_work_with_and_without_javascript(javascript: bool, visit: Any, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks())
    page = visit(java_script_enabled=javascript).open(path_of(session))
    with nullcontext() if javascript else navigating(page):
        page.get_by_role("button", name="Reject").click()
    expect(page.get_by_text("The answer is being sent to the agent.")).to_be_visible()
    page.get_by_label("Your prompt").fill("More.")
    with nullcontext() if javascript else navigating(page):
        page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("region", name="Queue")).to_contain_text("More.")
    page.get_by_role("button", name="Stop").click()
    eventually(lambda: session.intents.filter(kind="stop").exists(), describe="a stop is requested")


def test_tab_key_reaches_controls_in_order_with_visible_focus(visit: Any, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks())
    page = visit().open(path_of(session))
    reached = [_tab(page) for _ in range(32)]
    names = [name for name, _ in reached]
    wanted = ["Skip to content", "Board", "Answer", "Allow once", "Reject", "Your prompt", "Send"]
    assert (
        [name for name in names if name in wanted][: len(wanted) + 1]
        == [
            *wanted[:2],
            "Board",  # again, in the breadcrumb of the page
            *wanted[2:],
        ]
    )
    assert all(width >= 2 for _, width in reached), "the focus is visible everywhere"


@pytest.mark.parametrize("height", [900, 600])
def test_focus_by_tab_is_never_behind_the_composer(visit: Any, world: World, height: int) -> None:
    session = world.running_session()
    for number in range(12):
        call = {"tool_call_id": f"t{number}", "title": f"Step {number}", "status": "completed"}
        ingest_lines(session, {"kind": "tool.call", **call})
        ingest_lines(session, {"kind": "message.agent", "text": f"Done {number}.\n\n" * 6})
    page = visit(viewport={"width": 1200, "height": height}).open(path_of(session))
    covered, reached = [], []
    while "Your prompt" not in reached:
        reached.append(_tab(page)[0])
        if page.evaluate(_IS_BEHIND_COMPOSER):
            covered.append(reached[-1])
    assert len(reached) > 30
    assert covered == []


_IS_BEHIND_COMPOSER: Final = """() => {
    const focused = document.activeElement, box = focused.getBoundingClientRect();
    if (focused.closest("#composer") || !focused.closest("#talk")) return false;
    return box.top + box.height / 2 > document.getElementById("composer").getBoundingClientRect().top; }"""


def _tab(page: Page) -> tuple[str, float]:
    page.keyboard.press("Tab")
    seen = page.evaluate(
        """() => { const e = document.activeElement; const s = getComputedStyle(e);
        return [e.labels?.[0]?.innerText ?? e.innerText.trim(), parseFloat(s.outlineWidth)] }"""
    )
    return cast(tuple[str, float], tuple(seen))


def test_focus_stays_when_the_page_updates(visit: Any, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks(), asks("p2", title="Another thing"))
    page = visit().open(path_of(session))
    second = page.locator(".asks", has_text="Another thing")
    second.get_by_role("button", name="Reject").focus()
    ingest_lines(session, asks("p3", title="A third thing"))
    expect(page.locator(".asks", has_text="A third thing")).to_be_visible()
    expect(second.get_by_role("button", name="Reject")).to_be_focused()
