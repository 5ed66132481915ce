"""Files and completions in the composer, in a real browser."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, FilePayload, Page, Route, expect

from sessions_app.models import TaskSession
from tests.pages.browsers import NO_SOCKET, navigating
from tests.pages.world import World, make_world, path_of, supervise
from tests.prompts.pages.test_attachments import PNG

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

IMAGE: FilePayload = {"name": "a.png", "mimeType": "image/png", "buffer": PNG}
TEXT: FilePayload = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"pelican"}
PASTE = """([name, text, into = "#text"]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name, { type: "text/plain" }));
  const target = document.querySelector(into);
  target.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
}"""
DROP = """([name, text, on = "#messages"]) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([text], name, { type: "text/plain" }));
  const target = document.querySelector(on);
  const options = { dataTransfer, bubbles: true, cancelable: true };
  for (const type of ["dragover", "drop"]) target.dispatchEvent(new DragEvent(type, options));
}"""


@pytest.fixture
def world(browser: Browser) -> World:
    supervise()
    return make_world()


def test_chosen_pasted_and_dropped_files_are_sent_once(visit: Any, world: World) -> None:
    session, ada = world.running_session(), visit()
    page: Page = ada.open(path_of(session))
    chosen = page.get_by_label("Files to send")
    page.get_by_label("Attach files").set_input_files([IMAGE, TEXT])
    page.evaluate(PASTE, ["pasted.txt", "one"])
    page.evaluate(DROP, ["dropped.txt", "two"])
    expect(chosen.get_by_role("listitem")).to_have_count(4)
    expect(chosen.locator("img")).to_have_count(1)
    chosen.get_by_role("button", name="Remove notes.txt").press("Enter")
    expect(chosen.get_by_role("listitem")).to_have_count(3)
    page.get_by_label("Your prompt").fill("Look")
    page.get_by_role("button", name="Send").click()
    expect(chosen).to_be_hidden()
    expect(page.locator("#queue .attached img")).to_be_visible()
    row = session.prompts.get(text="Look")
    assert [each["name"] for each in row.attachments] == ["a.png", "pasted.txt", "dropped.txt"]
    assert ada.unexpected(*NO_SOCKET) == []


def test_form_for_a_new_session_takes_pasted_and_dropped_files(visit: Any, world: World) -> None:
    session, ada = world.running_session(), visit()
    page: Page = ada.open(f"/tasks/{session.task_id}/#new-session")
    page.get_by_label("Files (optional)").set_input_files([IMAGE])
    page.evaluate(PASTE, ["pasted.txt", "one", "#id_prompt"])
    page.evaluate(DROP, ["dropped.txt", "two", "#id_executor"])
    expect(page.get_by_label("Files to send").get_by_role("listitem")).to_have_count(3)
    page.get_by_label("First prompt").fill("Look")
    with navigating(page):
        page.get_by_role("button", name="Start session").click()
    expect(page.get_by_label("Your prompt")).to_be_visible()
    row = TaskSession.objects.exclude(id=session.id).get().prompts.get()
    assert [each["name"] for each in row.attachments] == ["a.png", "pasted.txt", "dropped.txt"]
    assert ada.unexpected(*NO_SOCKET) == []


def test_refused_file_stays_with_its_reason(visit: Any, world: World) -> None:
    session, ada = world.running_session(), visit()
    page: Page = ada.open(path_of(session))
    page.get_by_label("Attach files").set_input_files(
        FilePayload(name="notes.txt", mimeType="text/plain", buffer=b"\0\xff")
    )
    page.get_by_label("Your prompt").fill("Look")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#problem")).to_contain_text("“notes.txt” cannot be sent.")
    expect(page.get_by_label("Files to send").get_by_role("listitem")).to_have_count(1)
    assert not session.prompts.filter(text="Look").exists()


def test_prompt_without_one_of_its_files_is_no_retry(visit: Any, world: World) -> None:
    page: Page = visit().open(path_of(world.running_session()))
    page.route("**/prompt/", lambda route: route.abort(), times=1)
    page.get_by_label("Attach files").set_input_files([TEXT])
    page.get_by_label("Your prompt").fill("look")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("#problem").get_by_role("button", name="Retry")).to_be_visible()
    page.locator("#chosen").get_by_role("button").click()
    expect(page.locator("#chosen")).to_be_hidden()
    expect(page.locator("#problem").get_by_role("button", name="Retry")).to_be_hidden()


def test_files_of_the_workspace_are_completed_with_the_keyboard(visit: Any, world: World) -> None:
    session: TaskSession = world.running_session()
    folders = {"": [("src", "directory"), ("README.md", "file")], "src": [("app.py", "file"), ("main.py", "file")]}

    def answer(route: Route) -> None:
        path = route.request.url.partition("path=")[2]
        entries = [{"name": name, "type": kind, "size": 1} for name, kind in folders[path]]
        route.fulfill(json={"path": path, "entries": entries, "truncated": False, "kept": False})

    page: Page = visit().open(path_of(session))
    page.route("**/files/?path=*", answer)
    composer, offers = page.get_by_label("Your prompt"), page.get_by_role("listbox", name="Suggestions")
    composer.press_sequentially("Fix @s")
    expect(offers.get_by_role("option")).to_have_text(["src/"])
    composer.press("Enter")
    expect(offers.get_by_role("option")).to_have_text(["app.py", "main.py"])
    composer.press("ArrowDown")
    expect(offers.get_by_role("option", selected=True)).to_have_text("main.py")
    composer.press("Tab")
    expect(composer).to_have_value("Fix @src/main.py ")
    expect(offers).to_be_hidden()
    composer.press_sequentially("@READ")
    expect(offers.get_by_role("option")).to_have_count(1)
    composer.press("Escape")
    expect(offers).to_be_hidden()
    expect(composer).to_have_value("Fix @src/main.py @READ")
