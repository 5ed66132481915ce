"""``settings/``: the settings that the agent offers, and how they are changed."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from sessions_app.models import AgentSettings, TaskSession
from tests.api.world import World

pytestmark = pytest.mark.any_database

MODE = {"id": "mode", "name": "Mode", "description": "", "category": "mode", "type": "select", "value": "act"}
CHOICES = [{"value": "act", "name": "Act", "description": ""}, {"value": "plan", "name": "Plan", "description": ""}]
FAST: dict[str, Any] = {
    "id": "fast",
    "name": "Fast",
    "description": "",
    "category": "",
    "type": "boolean",
    "value": None,
    "choices": [],
}


@pytest.fixture
def reported(world: World) -> AgentSettings:
    settings = [{**MODE, "choices": CHOICES}, FAST]
    commands = [{"name": "work", "description": "Work", "hint": "seconds"}]
    return AgentSettings.objects.create(session=world.session, settings=settings, commands=commands, title="Fences")


def test_agent_that_has_reported_nothing_has_no_settings(world: World, api: APIClient) -> None:
    answer = api.get(world.url("settings/")).json()
    assert answer == {"settings": [], "commands": [], "title": "", "reported_at": None}
    refused = api.post(world.url("settings/"), {"setting": "mode", "value": "plan"}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (409, "settings_unknown")


def test_settings_are_shown_with_their_last_change(world: World, api: APIClient, reported: AgentSettings) -> None:
    answer = api.post(world.url("settings/"), {"setting": "mode", "value": "plan"}, format="json")
    assert answer.status_code == 202
    body = api.get(world.url("settings/")).json()
    assert body == answer.json()
    assert (body["title"], body["commands"]) == ("Fences", reported.commands)
    mode, fast = body["settings"]
    assert (mode["value"], mode["change"]["value"], mode["change"]["state"]) == ("act", "plan", "waiting")
    assert (mode["change"]["by"], fast["change"]) == ("member", None)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"setting": "mode", "value": "yolo"}, 400, "validation_error"),
        ({"setting": "mode", "value": True}, 400, "validation_error"),
        ({"setting": "mode", "value": ["plan"]}, 400, "validation_error"),
        ({"setting": "mode", "value": None}, 400, "validation_error"),
        ({"setting": "mode"}, 400, "validation_error"),
        ({"setting": "fast", "value": "true"}, 400, "validation_error"),
        ({"setting": "fast", "value": 1}, 400, "validation_error"),
        ({"setting": "", "value": "plan"}, 400, "validation_error"),
        ({"setting": "nothing", "value": "plan"}, 404, "unknown_setting"),
    ],
)
def test_invalid_changes_have_a_code(
    world: World, api: APIClient, reported: AgentSettings, body: dict[str, Any], status: int, code: str
) -> None:
    answer = api.post(world.url("settings/"), body, format="json")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    reported.refresh_from_db()
    assert reported.chosen == {}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"state": "COMPLETED"}, "terminal_state"),
        ({"state": "FAILED"}, "terminal_state"),
        ({"has_agent": False}, "no_agent"),
    ],
)
def test_session_that_takes_no_prompts_takes_no_settings(
    world: World, api: APIClient, reported: AgentSettings, fields: dict[str, Any], code: str
) -> None:
    TaskSession.objects.filter(id=world.session.id).update(**fields)
    answer = api.post(world.url("settings/"), {"setting": "mode", "value": "plan"}, format="json")
    assert (answer.status_code, answer.json()["code"]) == (409, code)
