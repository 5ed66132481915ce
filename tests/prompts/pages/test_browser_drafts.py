"""The composer keeps a draft until it is sent, in a real browser."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Route, expect

from sessions_app.models import TaskSession
from tests.pages.browsers import NO_SOCKET
from tests.pages.world import World, asks, ingest_lines, make_world, path_of, supervise

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def world(browser: Browser) -> World:
    supervise()
    return make_world()


def test_draft_survives_a_reload_and_is_removed_when_sent(visit: Any, world: World) -> None:
    session, ada = world.running_session(), visit()
    page = ada.open(path_of(session))
    composer = page.get_by_label("Your prompt")
    composer.fill("Half a thou")
    page.reload()
    expect(composer).to_have_value("Half a thou")
    other = ada.tab()
    other.goto(path_of(world.session()))
    expect(other.get_by_label("Your prompt")).to_have_value("")
    composer.fill("Half a thought, finished.")
    page.get_by_role("button", name="Send").click()
    expect(composer).to_have_value("")
    page.reload()
    expect(composer).to_have_value("")
    assert session.prompts.get(state="queued").text == "Half a thought, finished."
    assert ada.unexpected(*NO_SOCKET) == []


def test_draft_and_cursor_survive_a_new_epoch(visit: Any, world: World) -> None:
    session = world.running_session()
    page = visit().open(path_of(session))
    composer = page.get_by_label("Your prompt")
    composer.press_sequentially("Half a thought")
    with page.expect_event("load"):
        TaskSession.objects.filter(id=session.id).update(epoch=TaskSession().epoch)
    expect(composer).to_have_value("Half a thought")
    expect(composer).to_be_focused()
    page.keyboard.type(" continues")
    expect(composer).to_have_value("Half a thought continues")


def test_text_typed_during_a_slow_response_is_kept(visit: Any, world: World) -> None:
    session = world.running_session()
    page = visit().open(path_of(session))
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/prompt/", hold)
    composer = page.get_by_label("Your prompt")
    composer.press_sequentially("First.")
    with page.expect_request("**/prompt/"):
        page.keyboard.press("Control+Enter")
    page.keyboard.press("Control+Enter")
    page.keyboard.type(" Second")
    held[0].continue_()
    expect(composer).to_have_value("Second")
    page.reload()
    expect(composer).to_have_value("Second")
    assert len(held) == 1, "a prompt that is being sent is not sent again"
    assert [row.text for row in session.prompts.filter(state="queued")] == ["First."]


def test_text_changed_after_a_lost_response_is_a_new_prompt(visit: Any, world: World) -> None:
    session = world.running_session()
    page = visit().open(path_of(session))

    def lose_response(route: Route) -> None:
        route.fetch()
        route.abort()

    page.route("**/prompt/", lose_response)
    composer = page.get_by_label("Your prompt")
    composer.fill("Deploy it.")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("You can safely send it again")
    page.unroute("**/prompt/")
    page.reload()
    expect(composer).to_have_value("Deploy it.")
    page.get_by_role("button", name="Send").click()
    expect(composer).to_have_value("")
    assert [row.text for row in session.prompts.filter(state="queued")] == ["Deploy it."]

    page.route("**/prompt/", lose_response)
    composer.fill("Undo it.")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("You can safely send it again")
    page.unroute("**/prompt/")
    composer.fill("Undo it now.")
    page.get_by_role("button", name="Send").click()
    expect(composer).to_have_value("")
    assert [row.text for row in session.prompts.filter(state="queued")] == ["Deploy it.", "Undo it.", "Undo it now."]


@pytest.mark.parametrize("answer", ["accept", "dismiss"])
def test_prompt_during_an_open_permission_asks_first(answer: str, visit: Any, world: World) -> None:
    session, ada = world.running_session(), visit()
    ingest_lines(session, asks("p1", title="Push to main"))
    page = ada.open(path_of(session))
    questions: list[str] = []

    def decide(dialog: Dialog) -> None:
        questions.append(dialog.message)
        getattr(dialog, answer)()

    page.on("dialog", decide)
    composer = page.get_by_label("Your prompt")
    composer.fill("Something else.")
    with page.expect_event("dialog"):
        page.get_by_role("button", name="Send").click()
    if answer == "accept":
        expect(composer).to_have_value("")
        expect(page.get_by_role("region", name="Queue")).to_contain_text("Something else.")
    else:
        expect(page.get_by_role("button", name="Allow once")).to_be_enabled()
        expect(composer).to_have_value("Something else.")
    assert session.prompts.filter(text="Something else.").exists() is (answer == "accept")
    [question] = questions
    assert "waiting for your answer" in question
