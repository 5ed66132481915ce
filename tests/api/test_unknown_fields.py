"""A request with an unknown field is refused before any of it takes effect, and the field is named."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from sessions_app.models import Prompt, Task
from sessions_app.notifications.models import NotificationSettings
from tests.api.world import World


def refused(answer: Any) -> list[str]:
    """Return the fields that an error names."""
    body = answer.json()
    assert (answer.status_code, body["code"]) == (400, "validation_error")
    return sorted(body["details"])


def test_prompt_with_an_unknown_field_is_refused(world: World, api: APIClient) -> None:
    asked = {"message_id": "1", "text": "Look at this", "images": ["a.png"]}
    answer = api.post(world.url("prompt/"), asked, format="json")
    assert refused(answer) == ["images"]
    assert answer.json()["details"]["images"] == ["Unknown field. Known fields: message_id, text, attachments."]
    assert not Prompt.objects.exists()


def test_unknown_fields_are_reported_beside_other_errors(world: World, api: APIClient) -> None:
    assert refused(api.post(world.url("prompt/"), {"text": 1, "model": "x"}, format="json")) == [
        "message_id",
        "model",
        "text",
    ]


def test_update_with_an_unknown_field_changes_nothing(world: World, api: APIClient) -> None:
    url = f"/api/v1/tasks/{world.task.id}/"
    assert refused(api.patch(url, {"title": "Another", "state": "DONE"}, format="json")) == ["state"]
    assert Task.objects.get(id=world.task.id).title == world.task.title


@pytest.mark.parametrize("asked", [{"agent_profile": "x"}, {"policy": "auto", "desired_state": "stopped"}])
def test_only_the_policy_of_a_session_can_be_changed(world: World, api: APIClient, asked: dict[str, str]) -> None:
    assert set(refused(api.patch(world.url(), asked, format="json"))) == set(asked) - {"policy"}


def test_settings_with_an_unknown_field_are_refused(world: World, api: APIClient) -> None:
    answer = api.patch("/api/v1/notifications/", {"email": True, "sms": True}, format="json")
    assert refused(answer) == ["sms"]
    assert not NotificationSettings.objects.filter(email=True).exists()
