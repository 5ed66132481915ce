"""Queued prompts are edited and moved in a real browser, and no text of an editor is lost."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from sessions_app.models import TaskSession, session_transaction
from sessions_app.prompts import services as prompts
from tests.pages.browsers import NO_SOCKET, hold_updates, reported
from tests.pages.world import World, first_prompt, ingest_lines, make_world, path_of, supervise
from tests.waiting import eventually

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def world(browser: Browser) -> World:
    supervise()
    return make_world()


def with_queue(world: World, *message_ids: str) -> TaskSession:
    session = world.running_session()
    for message_id in message_ids:
        prompts.queue_prompt(session.id, message_id, f"do {message_id}", world.ada)
    return session


def open_editor(page: Page) -> Locator:
    """Open the form of the first prompt, and return its text."""
    page.get_by_text("Edit", exact=True).first.click()
    return page.get_by_label("Text of this prompt").first


def text_of(session: TaskSession, message_id: str) -> str:
    return str(session.prompts.get(message_id=message_id).text)


def test_edit_is_saved_without_a_page_load(visit: Any, world: World) -> None:
    session, ada = with_queue(world, "one"), visit()
    page = ada.open(path_of(session))
    page.evaluate("window.stayed = true")
    open_editor(page).fill("do it well")
    page.locator("#queue").get_by_role("button", name="Save").click()
    expect(page.locator("#queue .as-written")).to_have_text("do it well")
    expect(page.get_by_label("Text of this prompt")).to_be_hidden()
    assert page.evaluate("window.stayed")
    assert text_of(session, "one") == "do it well"
    assert ada.unexpected(*NO_SOCKET) == []


def test_text_being_typed_survives_updates_of_the_queue(visit: Any, world: World) -> None:
    session = with_queue(world, "one")
    page = visit().open(path_of(session))
    editor = open_editor(page)
    editor.fill("")
    editor.press_sequentially("half a ")
    prompts.queue_prompt(session.id, "two", "do two", world.ada)
    expect(page.locator("#queue")).to_contain_text("do two")
    expect(editor).to_be_focused()
    page.keyboard.type("thought")
    expect(editor).to_have_value("half a thought")


def test_edit_of_somebody_else_is_replaced_only_once_it_was_shown(visit: Any, world: World) -> None:
    session = with_queue(world, "one")
    page = visit().open(path_of(session))
    editor = open_editor(page)
    editor.fill("mine")
    prompts.edit_prompt(session.id, "one", "theirs", world.ada, version=1)
    save = page.locator("#queue").get_by_role("button", name="Save")
    save.click()
    expect(page.locator("#problem")).to_contain_text("Someone else has changed this prompt")
    expect(page.locator("#queue .as-written")).to_have_text("theirs")
    expect(editor).to_have_value("mine")
    assert text_of(session, "one") == "theirs"
    save.click()
    expect(page.locator("#queue .as-written")).to_have_text("mine")
    assert text_of(session, "one") == "mine"


def test_own_edit_whose_answer_comes_late_is_not_told_as_that_of_somebody_else(visit: Any, world: World) -> None:
    session = with_queue(world, "one")
    page = visit().open(path_of(session))
    held: list[Route] = []

    def hold_first(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    page.route("**/edit-prompt/", hold_first)
    open_editor(page).fill("mine")
    save = page.locator("#queue").get_by_role("button", name="Save")
    save.click()
    eventually(lambda: reported(page, held), describe="the page sends the edit")
    answer = held[0].fetch()
    expect(page.locator("#queue .as-written")).to_have_text("mine")
    held[0].fulfill(response=answer)
    expect(page.get_by_label("Text of this prompt")).to_be_hidden()
    expect(page.locator("#queue input[name=version]")).to_have_value("2")
    open_editor(page).fill("mine again")
    save.click()
    expect(page.locator("#queue .as-written")).to_have_text("mine again")
    expect(page.locator("#problem")).to_be_hidden()


def test_text_that_nobody_edits_is_not_kept_whatever_ends_its_lines(visit: Any, world: World) -> None:
    session = world.running_session()
    prompts.queue_prompt(session.id, "one", "do one\r\nand then the rest", world.ada)
    page = visit().open(path_of(session))
    expect(page.locator("#queue li")).to_have_count(1)
    prompts.withdraw_prompt(session.id, "one")
    expect(page.locator("#queue")).to_have_count(0)
    expect(page.locator(".unsaved")).to_have_count(0)


def test_text_of_a_prompt_that_is_sent_meanwhile_can_be_used(visit: Any, world: World) -> None:
    session = with_queue(world, "one", "two")
    page = visit().open(path_of(session))
    open_editor(page).fill("a long and good text")
    with session_transaction(session.id) as transaction:
        transaction.move_prompt(session.prompts.get(message_id="one"), "send")
    expect(page.get_by_text("left the queue before your change was saved")).to_be_visible()
    prompts.withdraw_prompt(session.id, "two")
    expect(page.locator("#queue")).not_to_contain_text("do two")
    page.get_by_role("button", name="Move it to").click()
    expect(page.get_by_label("Your prompt")).to_have_value("a long and good text")
    expect(page.locator(".unsaved")).to_have_count(0)
    assert text_of(session, "one") == "do one"


def test_prompt_is_moved_with_the_keyboard(visit: Any, world: World) -> None:
    session = with_queue(world, "one", "two", "three")
    page = visit().open(path_of(session))
    texts = page.locator("#queue .as-written")
    page.get_by_role("button", name="Move up").nth(2).focus()
    page.keyboard.press("Enter")
    expect(texts).to_have_text(["do one", "do three", "do two"])
    expect(page.get_by_role("button", name="Move up").nth(1)).to_be_focused()
    page.keyboard.press("Alt+ArrowUp")
    expect(texts).to_have_text(["do three", "do one", "do two"])
    expect(page.locator("#queue li").first.get_by_role("button", name="Move down")).to_be_focused()


@pytest.fixture
def steered(world: World) -> TaskSession:
    """Return a session whose agent works and takes prompts into its turn."""
    session = world.running_session()
    TaskSession.objects.filter(id=session.id).update(metadata={**session.metadata, prompts.STEERING_KEY: True})
    return session


def end_turn(session: TaskSession) -> None:
    ingest_lines(session, {"kind": "turn.completed", "message_id": first_prompt(session).message_id})


def test_prompt_is_sent_now_with_the_keyboard(visit: Any, steered: TaskSession) -> None:
    ada = visit()
    page = ada.open(path_of(steered))
    expect(page.get_by_role("button", name="Send now")).to_be_visible()
    expect(page.locator("#now-hint")).to_contain_text("Ctrl+Shift+Enter")
    composer = page.get_by_label("Your prompt")
    composer.fill("use tabs")
    composer.press("Control+Enter")
    expect(composer).to_have_value("")
    composer.fill("use spaces")
    composer.press("Control+Shift+Enter")
    expect(composer).to_have_value("")
    expect(page.locator("#queue li", has_text="use spaces")).to_contain_text("for the turn that is running")
    expect(page.locator("#queue li", has_text="use tabs")).not_to_contain_text("for the turn")
    expect(page.locator("#problem")).to_be_hidden()
    assert ada.unexpected(*NO_SOCKET) == []


def test_button_is_offered_as_long_as_the_turn_runs(visit: Any, steered: TaskSession) -> None:
    page = visit().open(path_of(steered))
    composer, button = page.get_by_label("Your prompt"), page.locator("#send-now")
    composer.fill("half a thought")
    button.focus()
    end_turn(steered)
    expect(button).to_have_count(0)
    expect(composer).to_have_value("half a thought")


def test_turn_that_has_just_ended_queues_the_prompt_and_says_so(visit: Any, steered: TaskSession) -> None:
    page = visit().open(path_of(steered))
    hold_updates(page)  # the page does not know yet that the turn has ended
    page.get_by_label("Your prompt").fill("use tabs")
    end_turn(steered)
    page.locator("#send-now").click()
    expect(page.locator("#problem")).to_contain_text("No running turn takes this prompt any more")
    expect(page.get_by_label("Your prompt")).to_have_value("")
    assert steered.prompts.get(text="use tabs").steered_into == ""


def test_lost_answer_is_repeated_without_a_second_prompt(visit: Any, steered: TaskSession) -> None:
    page = visit().open(path_of(steered))
    lost: list[Route] = []

    def lose_first(route: Route) -> None:
        if lost:
            route.fallback()
            return
        lost.append(route)
        route.fetch()
        route.abort()

    page.route("**/prompt/", lose_first)
    composer = page.get_by_label("Your prompt")
    composer.fill("use tabs")
    page.locator("#send-now").click()
    expect(page.locator("#problem")).to_contain_text("You can safely send it again")
    expect(composer).to_have_value("use tabs")
    page.get_by_role("button", name="Retry").click()
    expect(composer).to_have_value("")
    expect(page.locator("#problem")).to_be_hidden()
    assert steered.prompts.filter(text="use tabs").count() == 1
    assert steered.prompts.get(text="use tabs").steered_into == first_prompt(steered).message_id


def test_composer_sends_now_without_script(visit: Any, steered: TaskSession) -> None:
    page = visit(java_script_enabled=False).open(path_of(steered))
    page.get_by_label("Your prompt").fill("use tabs")
    page.locator("#send-now").click()
    expect(page.locator("#queue li", has_text="use tabs")).to_contain_text("for the turn that is running")


def test_composer_with_both_ways_of_sending_fits_on_a_phone(visit: Any, steered: TaskSession) -> None:
    page = visit(viewport={"width": 360, "height": 720}).open(path_of(steered))
    expect(page.locator("#send-now")).to_be_visible()
    outside = """[...document.querySelectorAll("#composer button, #composer label.button")]
        .map(each => each.getBoundingClientRect()).filter(box => box.left < 0 || box.right > 360).length"""
    assert page.evaluate(outside) == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_button_is_not_replaced_between_its_press_and_its_release(visit: Any, world: World) -> None:
    session = with_queue(world, "one")
    page = visit().open(path_of(session))
    held: list[Route] = []

    def hold_first(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    page.route("**/live/**", hold_first)
    eventually(lambda: reported(page, held), describe="the page requests its changes")
    prompts.queue_prompt(session.id, "two", "do two", world.ada)
    changes = held[0].fetch()
    queue = page.locator("#queue")
    queue.get_by_role("button", name="Withdraw").hover()
    page.mouse.down()
    with page.expect_response("**/live/**"):
        held[0].fulfill(response=changes)
    page.wait_for_timeout(100)  # in which the page would show them
    page.mouse.up()
    expect(queue).to_contain_text("do two")
    expect(queue).not_to_contain_text("do one")
    assert [row.text for row in session.prompts.filter(state="queued")] == ["do two"]


def press_tab_to(page: Page, target: Locator) -> None:
    """Reach an element with the keyboard alone, going back from where the focus is."""
    for _ in range(80):
        page.keyboard.press("Shift+Tab")
        if target.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"{target} is not reached by the keyboard")


def test_queued_prompt_is_edited_moved_and_withdrawn_with_the_keyboard_alone(visit: Any, world: World) -> None:
    session = with_queue(world, "one", "two")
    page = visit().open(path_of(session))
    entries, composer = page.locator("#queue li"), page.get_by_label("Your prompt")
    composer.focus()
    press_tab_to(page, entries.nth(1).locator("summary"))
    page.keyboard.press("Enter")
    editor = entries.nth(1).get_by_label("Text of this prompt")
    expect(editor).to_be_visible()
    page.keyboard.press("Tab")
    expect(editor).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type("do it well")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#queue .as-written")).to_have_text(["do one", "do it well"])
    composer.focus()
    press_tab_to(page, entries.nth(1).get_by_role("button", name="Move up"))
    page.keyboard.press("Enter")
    expect(page.locator("#queue .as-written")).to_have_text(["do it well", "do one"])
    composer.focus()
    press_tab_to(page, entries.nth(1).get_by_role("button", name="Withdraw"))
    page.keyboard.press("Enter")
    expect(page.locator("#queue .as-written")).to_have_text(["do it well"])
    assert [row.text for row in session.prompts.filter(state="queued")] == ["do it well"]


def test_queue_fits_on_a_phone(visit: Any, world: World) -> None:
    session = with_queue(world, "one", "two")
    page = visit().open(path_of(session))
    page.set_viewport_size({"width": 360, "height": 720})
    open_editor(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    # In one step, because an update may replace the buttons.
    outside = """[...document.querySelectorAll("#queue .buttons button")].map(each => each.getBoundingClientRect())
        .filter(box => box.left < 0 || box.right > 360).length"""
    assert page.evaluate(outside) == 0


@pytest.mark.parametrize(("width", "panel"), [(360, ""), (1000, "Changes"), (1280, "Changes"), (1280, "")])
def test_buttons_of_the_queue_leave_room_for_the_text(visit: Any, world: World, width: int, panel: str) -> None:
    session = with_queue(world, "one", "two")
    page = visit(viewport={"width": width, "height": 900}).open(path_of(session))
    if panel:
        page.get_by_role("tab", name=panel).click()
        expect(page.get_by_role("tab", name=panel)).to_have_attribute("aria-selected", "true")
    # In one step, because an update may replace the entries.
    widths = """[...document.querySelectorAll("#queue li, #queue li .as-written")].map(each => each.offsetWidth)"""
    entry, text, *_ = page.evaluate(widths)
    assert text > entry / 2
