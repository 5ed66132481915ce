"""A long request scrolls inside its card, and its answers are never behind the composer; what runs is shown live."""

from __future__ import annotations

from typing import Any, Final

import pytest
from playwright.sync_api import expect

from tests.pages.accessibility import accessibility_problems
from tests.pages.browsers import NO_SOCKET
from tests.pages.world import World, asks, ingest_lines, path_of

pytestmark = pytest.mark.browser

COMMAND: Final = "\n".join(f"echo step {number}" for number in range(200)) + "\nrm -rf the-end"
OPTIONS: Final = [
    {"option_id": "always", "name": "Always allow echo", "kind": "allow_always"},
    {"option_id": "once", "name": "Allow once", "kind": "allow_once"},
    {"option_id": "no", "name": "Reject", "kind": "reject_once"},
]
IS_REACHED: Final = """(button) => {
  const box = button.getBoundingClientRect();
  const hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
  return button.contains(hit);
}"""
"""Whether a click in the middle of a button reaches it: nothing covers it, and it is on the screen."""
SCREENS: Final = [
    {"viewport": {"width": 1280, "height": 800}},
    {"viewport": {"width": 390, "height": 844}, "has_touch": True, "color_scheme": "dark"},
]


@pytest.mark.parametrize("screen", SCREENS, ids=["desktop", "phone"])
def test_answers_to_a_long_command_are_in_reach(screen: dict[str, Any], visit: Any, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, *({"kind": "message.agent", "text": f"Paragraph {number}.\n\n"} for number in range(30)))
    request = asks(title="Run it", tool_kind="execute", raw_input={"command": COMMAND})
    ingest_lines(session, {**request, "options": OPTIONS})
    ada = visit(**screen)
    page = ada.open(path_of(session))
    card = page.locator(".permission-card")
    expect(card.get_by_role("heading")).to_have_text("Demo agent wants to run:")
    buttons = card.locator(".answers button")
    expect(buttons).to_have_text(["Allow once", "Reject", "Always allow echo"])
    assert [page.evaluate(IS_REACHED, button) for button in buttons.element_handles()] == [True] * 3
    page.mouse.wheel(0, -120)
    once = card.get_by_role("button", name="Allow once")
    assert page.evaluate(IS_REACHED, once.element_handle()), "the answers stay above the composer"
    asked = card.locator(".asked")
    assert asked.evaluate("(one) => one.scrollHeight > one.clientHeight"), "the request scrolls inside its card"
    expect(asked.locator("pre.command")).to_contain_text("rm -rf the-end")
    assert accessibility_problems(page) == []
    once.click()
    expect(page.get_by_text("The answer is being sent to the agent.")).to_be_visible()
    assert session.intents.get(kind="answer").payload["option_id"] == "once"
    assert ada.unexpected(*NO_SOCKET) == []


def test_open_page_shows_what_runs_and_nests_the_steps_of_a_sub_agent(visit: Any, world: World) -> None:
    session = world.running_session()
    ada = visit(viewport={"width": 1280, "height": 800})
    page = ada.open(path_of(session))
    activity = page.locator(".activity")
    expect(activity).to_contain_text("Working")
    expect(activity.locator(".elapsed")).not_to_contain_text("since")
    call = {"kind": "tool.call", "tool_call_id": "t1", "title": "Explore the code", "status": "in_progress"}
    ingest_lines(session, call)
    expect(activity).to_contain_text("Explore the code")
    step = {**call, "tool_call_id": "s1", "parent_tool_call_id": "t1", "title": "Read a.py"}
    ingest_lines(session, step)
    nested = page.locator(".message.tool", has_text="Explore the code").locator(".nested > .message")
    expect(nested).to_have_count(1)
    expect(nested).to_contain_text("Read a.py")
    diff = {"type": "diff", "path": "a.py", "oldText": "one\n", "newText": "two\n"}
    update = {"kind": "tool.update", "tool_call_id": "s1"}
    ingest_lines(session, {**update, "content": [diff]})
    expect(nested.locator(".diff")).to_be_visible()
    nested.locator("summary").first.click()
    expect(nested.locator(".diff")).to_be_hidden()
    ingest_lines(session, {**update, "status": "completed"}, {**update, "tool_call_id": "t1", "status": "completed"})
    expect(nested.locator(".pill").first).to_have_text("Done")
    expect(nested.locator(".diff")).to_be_hidden()
    expect(nested).to_have_count(1)
    assert accessibility_problems(page) == []
    assert ada.unexpected(*NO_SOCKET) == []
