"""What a user has entered stays where it is while the page updates itself around it."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

from executors_app.wire.questions.schema import options_of, parse_question
from sessions_app.models import TaskSession
from tests.pages.browsers import hold_updates
from tests.pages.world import World, ingest_lines, path_of

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

ENTER = """() => {
  const isBox = (one) => one.type === "checkbox" || one.type === "radio";
  const isFillable = (one) => one.type !== "hidden" && !one.readOnly && !one.disabled;
  const fields = () => [...document.querySelectorAll("[id^=part-]")]
    .flatMap((part) => [...part.querySelectorAll("input, select, textarea")])
    .filter(isFillable);
  for (const one of fields()) {
    if (one.options) one.selectedIndex = one.options.length - 1;
    else if (isBox(one)) one.checked = !one.checked;
    else one.value = one.type === "number" ? "41" : "abc";
  }
  window.entered = () => fields().map((one) => `${one.id || one.name}=${isBox(one) ? one.checked : one.value}`);
  return window.entered();
}"""
"""Enters a value into each field of the page's parts; ``entered`` then tells what they hold."""
REDRAW = """async (change) => {
  const { partsOf } = await import("/static/kandev/live.js");
  const names = [...document.querySelectorAll("[id^=part-]")].map((part) => part.id.replace("part-", ""));
  for (const name of names) {
    const sent = window.sent[name].replaceAll(...(change ?? ["", ""]));
    partsOf([name])({ [name]: sent });
  }
}"""
"""Replaces each part by what the server sent, with one text of it changed, as an update does."""
REMEMBER = """() => {
  const parts = [...document.querySelectorAll("[id^=part-]")];
  window.sent = Object.fromEntries(parts.map((part) => [part.id.replace("part-", ""), part.innerHTML]));
}"""
QUESTION = {
    "mode": "form",
    "message": "Which fence?",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "colour": {"type": "string", "enum": ["red", "green"]},
            "planks": {"type": "integer"},
            "why": {"type": "string"},
            "gate": {"type": "boolean"},
        },
    },
}


def asking_session(world: World) -> TaskSession:
    """Return a session whose agent asks a question, with two queued prompts."""
    session, question = world.running_session(), parse_question(QUESTION)
    call = {"title": question["message"], "tool_call_id": ""}
    line = {"kind": "permission.requested", "permission_id": "q1", "tool_call": call, "question": question}
    ingest_lines(session, {**line, "options": options_of(question)})
    for number in range(2):
        session.prompts.create(message_id=f"queued-{number}", text="Paint it.")
    return session


def open_page(visit: Any, path: str) -> Page:
    page: Page = visit().open(path)
    hold_updates(page)  # only the tests replace parts of it
    page.evaluate(REMEMBER)
    return page


@pytest.mark.parametrize("kind", ["asking", "resting"])
def test_every_field_of_the_session_page_keeps_what_was_entered(kind: str, visit: Any, world: World) -> None:
    session = asking_session(world) if kind == "asking" else world.resting_session(resume_token="t")
    page = open_page(visit, path_of(session))
    entered = page.evaluate(ENTER)
    assert "budget-tokens=41" in entered
    assert any("=abc" in one for one in entered)
    page.evaluate(REDRAW)
    assert page.evaluate("window.entered()") == entered


def test_field_that_nobody_changed_shows_the_value_of_the_server(visit: Any, world: World) -> None:
    page = open_page(visit, path_of(world.resting_session(resume_token="t")))
    page.evaluate("document.getElementById('budget-currency').value = 'EUR'")
    page.evaluate(REDRAW, ['name="budget_tokens" min="0"', 'name="budget_tokens" min="0" value="7"'])
    assert page.evaluate("document.getElementById('budget-tokens').value") == "7"
    assert page.evaluate("document.getElementById('budget-currency').value") == "EUR"


def test_caret_stays_in_the_middle_of_a_word(visit: Any, world: World) -> None:
    page = open_page(visit, path_of(world.resting_session(resume_token="t")))
    page.get_by_role("tab", name="Session").click()
    page.get_by_text("Budget of this session").click()
    currency = page.get_by_label("Currency of the cost")
    currency.fill("UD")
    currency.evaluate("(field) => field.setSelectionRange(1, 1)")
    page.evaluate(REDRAW)
    page.keyboard.type("S")
    assert currency.input_value() == "USD"
