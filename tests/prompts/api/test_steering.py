"""A prompt is handed to the running turn over the API and on the page, where the agent offers that."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from sessions_app.models import Intent, TaskSession, Turn
from sessions_app.prompts.services import STEERING_KEY
from tests.api.world import World, prompt


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
    assert "Send now</button>" in page_of(working)
    answer = api.post(working.url("prompts/one/send-now/"))
    assert (answer.status_code, answer.json()["state"], answer.json()["steered_into"]) == (200, "queued", "m1")
    assert "Send now</button>" not in page_of(working)
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
    assert "Send now</button>" not in page_of(working)
    refused = api.post(working.url("prompts/one/send-now/"))
    assert (refused.status_code, refused.json()["code"]) == (409, "not_steerable")


def test_unknown_way_of_delivery_is_refused(working: World, api: APIClient) -> None:
    body = {"message_id": "one", "text": "Use tabs", "deliver": "later"}
    assert api.post(working.url("prompt/"), body, format="json").status_code == 400
