"""Queued prompts are edited and moved on the page, without scripts too; no text of an editor is lost."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from sessions_app.models import Prompt, TaskSession, session_transaction
from sessions_app.prompts import delivery
from sessions_app.prompts import services as prompts
from sessions_app.sessions.views import session_page
from tests.pages.world import World, path_of

pytestmark = pytest.mark.any_database


def queue(world: World, *message_ids: str, **values: Any) -> TaskSession:
    session = world.running_session()
    for message_id in message_ids:
        session.prompts.create(message_id=message_id, text=f"do {message_id}", **values)
    return session


def save(
    session: TaskSession,
    browser: Client,
    text: str = "do it well",
    version: int = 1,
    headers: dict[str, str] | None = None,
) -> Any:
    values = {"message_id": "m/1", "text": text, "version": version}
    return browser.post(f"{path_of(session)}edit-prompt/", values, headers=headers)


def buttons(html: str) -> list[str]:
    section = html.partition('<section id="queue"')[2].partition("</section>")[0]
    found = re.findall(r'<button[^>]*?(?: aria-label="([^"]*)"[^>]*)?>([^<]*)</button>', section)
    return [label or text for label, text in found if text != "Cancel"]


def test_queued_prompt_is_edited_in_its_list(world: World, ada: Client) -> None:
    session = queue(world, "m/1")
    html = ada.get(path_of(session)).content.decode()
    assert "\ndo m/1</textarea>" in html
    answer = save(session, ada, "do it\r\nwell")
    assert answer.status_code == 302
    assert session.prompts.get(message_id="m/1").text == "do it\nwell"
    assert "edited" in ada.get(path_of(session)).content.decode()


def test_long_prompt_is_edited_on_a_page_of_its_own(world: World, ada: Client) -> None:
    session = queue(world, "m/1")
    session.prompts.update(text="x" * (session_page.EDITED_HERE + 1))
    html = ada.get(path_of(session)).content.decode()
    assert "queued-edit" not in html
    found = re.search(r'href="([^"]*/edit-prompt/[^"]*)"', html)
    assert found is not None
    assert "x" * (session_page.EDITED_HERE + 1) in ada.get(found[1]).content.decode()


def test_only_the_first_prompts_of_a_long_queue_are_edited_in_the_page(world: World, ada: Client) -> None:
    session = queue(world, *(f"m{number}" for number in range(session_page.MAX_EDITED_HERE + 2)))
    html = ada.get(path_of(session)).content.decode()
    assert html.count('class="queued-edit"') == session_page.MAX_EDITED_HERE
    assert html.count("/edit-prompt/?message_id=") == 2


def test_page_of_a_prompt_that_was_sent_leads_back(world: World, ada: Client) -> None:
    session = queue(world, "m/1", state="delivered")
    answer = ada.get(f"{path_of(session)}edit-prompt/?message_id=m/1", follow=True)
    assert "no longer waits in the queue" in answer.content.decode()


def test_text_for_a_prompt_that_was_sent_is_offered_as_a_new_one(world: World, ada: Client) -> None:
    session = queue(world, "m/1", state="sending")
    answer = save(session, ada)
    html = answer.content.decode()
    assert answer.status_code == 409
    assert "has been sent to the agent meanwhile" in html
    assert "do it well</textarea>" in html
    assert f'action="{path_of(session)}prompt/"' in html
    assert 'value="m/1"' not in html


def test_text_over_another_edit_is_shown_beside_it(world: World, ada: Client) -> None:
    session = queue(world, "m/1")
    save(session, ada, "somebody else's text")
    answer = save(session, ada)
    html = answer.content.decode()
    assert answer.status_code == 409
    assert "somebody else&#x27;s text" in html
    assert "do it well</textarea>" in html
    assert 'name="version" value="2"' in html
    assert save(session, ada, version=2).status_code == 302
    assert session.prompts.get(message_id="m/1").text == "do it well"


def test_script_gets_the_code_and_the_present_version(world: World, ada: Client) -> None:
    session = queue(world, "m/1")
    script = {"Accept": "application/json"}
    assert save(session, ada, "one", headers=script).json() == {}
    refused = save(session, ada, "two", headers=script)
    assert (refused.status_code, refused.json()["code"], refused.json()["version"]) == (409, "prompt_changed", 2)
    session.prompts.update(state="sending")
    assert save(session, ada, "two", 2, headers=script).json()["code"] == "prompt_not_queued"


def test_queue_is_shown_in_its_order_with_buttons_to_move(world: World, ada: Client) -> None:
    session = queue(world, "one", "two")
    html = ada.get(path_of(session)).content.decode()
    assert buttons(html) == ["Move up", "Move down", "Withdraw", "Save"] * 2
    assert html.count('disabled aria-label="Move up') == html.count('disabled aria-label="Move down') == 1
    ada.post(f"{path_of(session)}move-up/", {"message_id": "two"})
    html = ada.get(path_of(session)).content.decode()
    assert html.index("do two</textarea>") < html.index("do one</textarea>")
    ada.post(f"{path_of(session)}move-down/", {"message_id": "two"})
    html = ada.get(path_of(session)).content.decode()
    assert html.index("do one</textarea>") < html.index("do two</textarea>")


def test_queue_is_shown_in_the_order_of_sending(world: World, ada: Client) -> None:
    session = queue(world, "one", "two")
    session.prompts.create(message_id="wait:1", text="go with wait:1", kind="wait")
    for kind in ("continue", "retry", "check"):
        session.prompts.create(message_id=kind, text=f"go with {kind}", kind=kind)
    session.prompts.create(message_id="three", text="do three", state="sending")
    prompts.move_by(session.id, "two", -1, world.ada)
    html = ada.get(path_of(session)).content.decode()
    shown = re.findall(
        r'<span class="as-written">(?:do|go with) ([\w:]+)</span>', html.partition('<section id="queue"')[2]
    )
    sent = []
    for _ in range(7):
        with session_transaction(session.id) as transaction:
            row = delivery._next_prompt(transaction, "")
            assert row is not None
            sent.append(row.message_id)
        Prompt.objects.filter(id=row.pk).update(state="done")
    assert shown == sent == ["three", "check", "retry", "continue", "two", "one", "wait:1"]


def test_prompts_of_kandev_can_only_be_withdrawn(world: World, ada: Client) -> None:
    session = queue(world, "one")
    session.prompts.create(message_id="continue:1", text="go on", kind="continue")
    html = ada.get(path_of(session)).content.decode()
    assert buttons(html) == ["Withdraw", "Move up", "Move down", "Withdraw", "Save"]


def test_prompt_of_a_workflow_is_offered_no_edit(world: World, ada: Client) -> None:
    session = queue(world, "one")
    session.prompts.filter(message_id="one").update(of_workflow=True)
    html = ada.get(path_of(session)).content.decode()
    assert "sent by a step of a workflow" in html
    assert "edit-prompt/" not in html
    answer = ada.get(f"{path_of(session)}edit-prompt/?message_id=one", follow=True)
    assert "so it cannot be edited" in answer.content.decode()
