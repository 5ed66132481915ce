"""A prompt is handed to the running turn over the API and on the page, where the agent offers that."""

from __future__ import annotations

from typing import Any, Final

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from sessions_app.accounts.models import TeamRole
from sessions_app.models import Intent, TaskSession, Turn
from sessions_app.prompts.services import STEERING_KEY
from tests.api.world import World, prompt

OF_A_QUEUED_PROMPT: Final = 'send-now/" name="message_id"'
OF_THE_COMPOSER: Final = 'name="deliver" value="now"'
MISSED: Final = "not taken by the turn that was running"


@pytest.fixture
def working(world: World) -> World:
    """Return a session whose agent is in a turn and takes prompts into it."""
    Turn.objects.create(session=world.session, message_id="m1", state="running", started_at=timezone.now())
    world.mark_running()
    Intent.objects.update(done_at=timezone.now())
    offer(world, True)
    return world


def offer(world: World, offers: Any) -> None:
    TaskSession.objects.filter(id=world.session.id).update(metadata={STEERING_KEY: offers})


def page_of(world: World) -> str:
    browser = Client()
    browser.force_login(world.member)
    return browser.get(f"/tasks/{world.task.id}/sessions/{world.session.id}/").content.decode()


def test_queued_prompt_is_sent_now(working: World, api: APIClient) -> None:
    prompt(working.session, "queued", "one")
    assert api.get(working.url("status/")).json()["can_steer"]
    assert OF_A_QUEUED_PROMPT in page_of(working)
    answer = api.post(working.url("prompts/one/send-now/"))
    assert (answer.status_code, answer.json()["state"], answer.json()["steered_into"]) == (200, "queued", "m1")
    assert OF_A_QUEUED_PROMPT not in page_of(working)
    assert "for the turn that is running" in page_of(working)


@pytest.mark.parametrize(("deliver", "steered_into"), [("now", "m1"), ("queue", ""), (None, "")])
def test_new_prompt_says_how_it_is_delivered(
    working: World, api: APIClient, deliver: str | None, steered_into: str
) -> None:
    body = {"message_id": "one", "text": "Use tabs", **({"deliver": deliver} if deliver else {})}
    assert api.post(working.url("prompt/"), body, format="json").status_code == 202
    assert api.post(working.url("prompt/"), body, format="json").status_code == 200
    assert working.session.prompts.get(message_id="one").steered_into == steered_into


def test_agent_that_offers_nothing_gets_it_in_the_queue(working: World, api: APIClient) -> None:
    offer(working, False)
    body = {"message_id": "one", "text": "Use tabs", "deliver": "now"}
    assert api.post(working.url("prompt/"), body, format="json").status_code == 202
    assert not api.get(working.url("status/")).json()["can_steer"]
    assert "Send now" not in page_of(working)
    refused = api.post(working.url("prompts/one/send-now/"))
    assert (refused.status_code, refused.json()["code"]) == (409, "not_steerable")


def test_unknown_way_of_delivery_is_refused(working: World, api: APIClient) -> None:
    body = {"message_id": "one", "text": "Use tabs", "deliver": "later"}
    assert api.post(working.url("prompt/"), body, format="json").status_code == 400


def submit(world: World, user: Any, message_id: str = "one", *, script: bool = False, **fields: str) -> Any:
    """Send the form of the session page; ``script``: as its script does."""
    browser = Client()
    browser.force_login(user)
    accept = "application/json" if script else "text/html"
    address = f"/tasks/{world.task.id}/sessions/{world.session.id}/prompt/"
    body = {"message_id": message_id, "text": "Use tabs", **fields}
    return browser.post(address, body, headers={"Accept": accept}, follow=not script)


def end_turn(world: World) -> None:
    world.session.runs.update(state="completed", ended_at=timezone.now())


@pytest.mark.parametrize("script", [True, False])
def test_composer_hands_a_prompt_to_the_running_turn_once(working: World, script: bool) -> None:
    assert OF_THE_COMPOSER in page_of(working)
    for _ in range(2):
        answer = submit(working, working.member, script=script, deliver="now")
        assert answer.status_code == 200
        assert "No running turn" not in answer.content.decode()
    assert [row.steered_into for row in working.session.prompts.filter(text="Use tabs")] == ["m1"]
    assert working.session.events.filter(name="session.prompt.steered").count() == 1
    assert "for the turn that is running" in page_of(working)


@pytest.mark.parametrize("script", [True, False])
def test_turn_that_has_ended_queues_the_prompt_and_the_page_says_so(working: World, script: bool) -> None:
    end_turn(working)
    assert OF_THE_COMPOSER not in page_of(working)
    answer = submit(working, working.member, script=script, deliver="now")
    assert "No running turn takes this prompt any more" in answer.content.decode()
    assert working.session.prompts.get(message_id="one").steered_into == ""


def test_prompt_that_waits_is_handed_over_when_its_request_is_repeated_for_now(working: World) -> None:
    submit(working, working.member)
    assert working.session.prompts.get(message_id="one").steered_into == ""
    submit(working, working.member, deliver="now")
    assert working.session.prompts.get(message_id="one").steered_into == "m1"
    assert working.session.prompts.filter(text="Use tabs").count() == 1


@pytest.mark.parametrize("script", [True, False])
def test_prompt_that_was_sent_before_its_request_is_repeated_is_not_told_to_wait(working: World, script: bool) -> None:
    submit(working, working.member)
    end_turn(working)
    working.session.prompts.filter(message_id="one").update(state="done")
    answer = submit(working, working.member, script=script, deliver="now")
    assert answer.status_code == 200
    assert "No running turn" not in answer.content.decode()


@pytest.mark.parametrize("fields", [{"steered_into": "m1"}, {"missed_turn": True}])
def test_page_says_that_a_turn_has_ended_without_its_prompt(working: World, fields: dict[str, Any]) -> None:
    prompt(working.session, "queued", "one")
    working.session.prompts.filter(message_id="one").update(**fields)
    end_turn(working)
    assert MISSED in page_of(working)


def test_viewer_is_offered_nothing(working: World) -> None:
    TeamRole.objects.create(user=working.member, team=working.team, role=TeamRole.Role.VIEWER)
    assert OF_THE_COMPOSER not in page_of(working)
