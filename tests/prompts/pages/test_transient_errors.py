"""How the page shows a turn that is retried and one that has gone silent."""

from __future__ import annotations

import pytest
from django.test import Client
from django.utils import timezone

from sessions_app.models import Prompt, TaskSession
from tests.pages.world import World, first_prompt, ingest_lines, path_of

pytestmark = pytest.mark.django_db
OVERLOADED = "API Error: 529 Overloaded"


def failed(world: World, message: str = OVERLOADED) -> TaskSession:
    """Return a session whose turn has just failed."""
    session = world.running_session()
    message_id = first_prompt(session).message_id
    ingest_lines(session, {"kind": "turn.failed", "message_id": message_id, "code": "agent_error", "message": message})
    session.refresh_from_db()
    return session


def test_retried_turn_shows_its_error_and_retry_time(world: World, ada: Client) -> None:
    session = failed(world)
    html = ada.get(path_of(session)).text
    at = f"{Prompt.objects.get(kind='retry').not_before:%H:%M:%S} UTC"
    assert f"The model’s provider is overloaded. The turn is retried at {at} (1 of 5)." in html
    assert OVERLOADED in html
    assert "Retrying" in html
    assert "retry after an error of the model’s provider, attempt 1" in html


def test_cancel_turn_withdraws_the_retry(world: World, ada: Client) -> None:
    session = failed(world)
    ada.post(f"{path_of(session)}cancel/")
    assert Prompt.objects.get(kind="retry").state == "withdrawn"
    html = ada.get(path_of(session)).text
    assert 'aria-label="What to know"' not in html
    assert "Cancel turn" not in html


def test_permanent_error_is_shown_without_a_retry(world: World, ada: Client) -> None:
    html = ada.get(path_of(failed(world, "API Error: 401 invalid x-api-key"))).text
    assert "API Error: 401 invalid x-api-key" in html
    assert "tried again" not in html


def test_prompt_of_a_failed_turn_is_sent_again_once(world: World, ada: Client) -> None:
    session = failed(world, "API Error: 401 invalid x-api-key")
    first = first_prompt(session)
    assert ">Send again</button>" in ada.get(path_of(session)).text
    for _ in range(2):  # the answer to the first click was lost
        ada.post(f"{path_of(session)}resend/", {"message_id": first.message_id})
    (again,) = session.prompts.exclude(message_id=first.message_id)
    assert (again.text, again.state, again.kind) == (first.text, "queued", "user")
    first.refresh_from_db()
    assert (first.state, first.resent_as) == ("done", again)
    assert ">Send again</button>" not in ada.get(path_of(session)).text


def test_prompt_of_a_completed_turn_is_not_sent_again(world: World, ada: Client) -> None:
    session = world.running_session()
    message_id = first_prompt(session).message_id
    ingest_lines(session, {"kind": "turn.completed", "message_id": message_id, "stop_reason": "end_turn"})
    ada.post(f"{path_of(session)}resend/", {"message_id": message_id})
    assert session.prompts.count() == 1
    assert ">Send again</button>" not in ada.get(path_of(session)).text


def test_silent_turn_is_shown_and_can_be_cancelled(world: World, ada: Client) -> None:
    session = world.running_session()
    since = timezone.now()
    TaskSession.objects.filter(id=session.id).update(stalled_since=since)
    html = ada.get(path_of(session)).text
    assert "The agent has not responded since" in html
    assert f"data-exact>{since:%H:%M:%S} UTC</time>" in html
    assert "Cancel turn" in html
