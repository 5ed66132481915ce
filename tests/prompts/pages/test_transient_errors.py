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


def test_silent_turn_is_shown_and_can_be_cancelled(world: World, ada: Client) -> None:
    session = world.running_session()
    since = timezone.now()
    TaskSession.objects.filter(id=session.id).update(stalled_since=since)
    html = ada.get(path_of(session)).text
    assert "The agent has not responded since" in html
    assert f"data-exact>{since:%H:%M:%S} UTC</time>" in html
    assert "Cancel turn" in html
