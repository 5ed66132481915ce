"""A session whose agent works without a prompt is shown as working wherever it appears."""

from __future__ import annotations

import html

import pytest
from django.test import Client

from sessions_app.models import Prompt, TaskSession
from tests.pages.world import NOON, World, first_prompt, ingest_lines, path_of

pytestmark = pytest.mark.any_database


def working_alone(world: World) -> TaskSession:
    """Return a session whose agent has begun to work a minute after its turn."""
    session = world.running_session()
    ended = {"kind": "turn.completed", "message_id": first_prompt(session).message_id, "stop_reason": "end_turn"}
    ingest_lines(session, ended)
    ingest_lines(session, {"kind": "message.agent", "text": "The build has ended.", "ts": NOON + 60})
    session.refresh_from_db()
    return session


def test_page_and_lists_show_work_that_the_agent_began(ada: Client, world: World) -> None:
    session = working_alone(world)
    page = html.unescape(ada.get(path_of(session)).text)
    assert "The agent is working on its own." in page
    assert "Prompts you send now wait until it has finished." in page
    assert "Cancel turn" in page
    for path in ("/", f"/tasks/{session.task_id}/"):
        assert '<span class="pill busy">Working</span>' in ada.get(path).text, path


def test_page_says_what_a_queued_prompt_waits_for(ada: Client, world: World) -> None:
    session = working_alone(world)
    Prompt.objects.create(session=session, message_id="p2", text="next")
    page = html.unescape(ada.get(path_of(session)).text)
    assert "The agent is working on its own. A prompt waits for the agent." in page


def test_timeline_says_that_the_agent_began(ada: Client, world: World) -> None:
    session = working_alone(world)
    assert "The agent began to work on its own" in ada.get(f"{path_of(session)}timeline/").text


def test_api_lists_the_turn_with_its_origin(ada: Client, world: World) -> None:
    session = working_alone(world)
    path = f"/api/v1/tasks/{session.task_id}/sessions/{session.id}/"
    first, own = ada.get(f"{path}runs/").json()["results"]
    assert (first["origin"], own["origin"], own["state"]) == ("prompt", "agent", "running")
    status = ada.get(f"{path}status/").json()
    assert (status["state"], status["derived_status"], status["work_state"]) == ("RUNNING", "running", "working")
