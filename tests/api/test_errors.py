"""Every error has the shape ``{code, message, details}`` and never shows a traceback."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError
from django.test import Client
from rest_framework.authtoken.models import Token
from rest_framework.exceptions import Throttled
from rest_framework.test import APIClient

from executors_app.wire import errors as places
from sessions_app.api.base_views import MAX_BODY
from sessions_app.api.errors import exception_handler
from sessions_app.board.api import views as board_views
from sessions_app.models import Prompt, Task
from sessions_app.notifications.models import NotificationSettings
from tests.api.world import World

TASKS = "/api/v1/tasks/"
JSON = "application/json"


def is_error(answer: Any, status: int, code: str) -> None:
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == JSON
    body = answer.json()
    assert body.keys() == {"code", "message", "details"}
    assert body["code"] == code
    assert body["message"]
    assert isinstance(body["details"], dict)


def post_bytes(api: APIClient, body: bytes) -> Any:
    return api.generic("POST", TASKS, body, content_type=JSON)  # type: ignore[arg-type]  # bytes are sent as they are


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"title": NaN}',
        b'{"title": "\\ud800"}',
        b'{"title": "a\\u0000b"}',
        b'{"title": "x", "a\\u0000": 1}',
        b'{"title": "x", "extra": ["\\u0000"]}',
        b'{"title": "x", "extra": 1e999}',
        b'{"extra": ' + b"[" * 100 + b"]" * 100 + b"}",
        b"[" * 100_000,
        b'{"title": ' + b"9" * 5000 + b"}",
    ],
    ids=range(15),
)
def test_invalid_json_is_refused(api: APIClient, body: bytes) -> None:
    is_error(post_bytes(api, body), 400, "validation_error")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "title"),
        ({"title": None}, "title"),
        ({"title": ""}, "title"),
        ({"title": "  "}, "title"),
        ({"title": 5}, "title"),
        ({"title": True}, "title"),
        ({"title": ["x"]}, "title"),
        ({"title": {"x": 1}}, "title"),
        ({"title": "x" * 301}, "title"),
        ({"title": "x", "description": 1.5}, "description"),
        ({"title": "x", "team": 10**30}, "team"),
        ({"title": "x", "team": -1}, "team"),
        ({"title": "x", "team": True}, "team"),
        ({"title": "x", "team": 1.5}, "team"),
        ({"title": "x", "team": {}}, "team"),
        ({"title": "x", "team": "nobody"}, "team"),
        ({"title": "x", "repository": "x"}, "repository"),
        ({"title": "x", "repository": 10**30}, "repository"),
        ({"title": "x", "repository": []}, "repository"),
        ({"title": "x", "repository": "00000000-0000-0000-0000-000000000000"}, "repository"),
        ({"title": "x", "repository_path": "/nowhere"}, "repository_path"),
        ({"title": "x", "repository_path": 1}, "repository_path"),
        ({"title": "x", "base_branch": "--upload-pack=x"}, "base_branch"),
        ({"title": "x", "base_branch": "a..b"}, "base_branch"),
        ({"title": "x", "base_branch": "a b"}, "base_branch"),
    ],
)
def test_invalid_field_of_a_task_is_named(api: APIClient, body: dict[str, Any], field: str) -> None:
    answer = api.post(TASKS, json.dumps(body), content_type=JSON)
    is_error(answer, 400, "validation_error")
    assert list(answer.json()["details"]) == [field]


@pytest.mark.parametrize(
    ("tail", "body", "field"),
    [
        ("resume/", {"mode": "fast"}, "mode"),
        ("resume/", {"mode": {}}, "mode"),
        ("resume/", {"mode": None}, "mode"),
        ("close/", {}, "as"),
        ("close/", {"as": "done"}, "as"),
        ("prompt/", {"text": "x"}, "message_id"),
        ("prompt/", {"message_id": "1"}, "text"),
        ("prompt/", {"message_id": "1", "text": " \n"}, "text"),
        ("prompt/", {"message_id": "1", "text": 7}, "text"),
        ("prompt/", {"message_id": 7, "text": "x"}, "message_id"),
        ("prompt/", {"message_id": "", "text": "x"}, "message_id"),
        ("prompt/", {"message_id": "a\nb", "text": "x"}, "message_id"),
        ("prompt/", {"message_id": "x" * 129, "text": "x"}, "message_id"),
        ("prompt/", {"message_id": "continue:1", "text": "x"}, "message_id"),
        ("prompt/", {"message_id": "1", "text": "x" * (1024 * 1024 + 1)}, "text"),
        ("permissions/permission-1/", {}, "option_id"),
        ("permissions/permission-1/", {"option_id": 1}, "option_id"),
    ],
)
def test_invalid_field_of_a_command_is_named(
    world: World, api: APIClient, tail: str, body: dict[str, Any], field: str
) -> None:
    answer = api.post(world.url(tail), body, format="json")
    is_error(answer, 400, "validation_error")
    assert list(answer.json()["details"]) == [field]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"agent_profile": "x"}, "agent_profile"),
        ({"agent_profile": 10**30}, "agent_profile"),
        ({"agent_profile": None}, "agent_profile"),
        ({"executor": {}}, "executor"),
        ({"executor": "00000000-0000-0000-0000-000000000000"}, "executor"),
        ({"prompt": 1}, "prompt"),
        ({"policy": "never"}, "policy"),
        ({"desired_state": 1}, "desired_state"),
    ],
)
def test_invalid_field_of_a_session_is_named(world: World, api: APIClient, change: dict[str, Any], field: str) -> None:
    body = {"agent_profile": str(world.profile.id), "executor": str(world.executor.id), **change}
    answer = api.post(f"{TASKS}{world.task.id}/sessions/", json.dumps(body), content_type=JSON)
    is_error(answer, 400, "validation_error")
    assert list(answer.json()["details"]) == [field]


@pytest.mark.parametrize("path", ["nothing/", "tasks/1/", "tasks/%00/", "tasks/%0a/", "tasks", "", "sweeps/x/"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_unknown_path_returns_404_for_everybody(db: None, path: str, method: str) -> None:
    is_error(APIClient().generic(method, f"/api/v1/{path}"), 404, "not_found")


def test_longest_prompt_fits_and_a_larger_body_is_refused(world: World, api: APIClient) -> None:
    longest = {"message_id": "1", "text": "\U0001f600" * (512 * 1024)}
    assert api.post(world.url("prompt/"), json.dumps(longest), content_type=JSON).status_code == 202
    is_error(post_bytes(api, b" " * (MAX_BODY + 1)), 413, "too_large")


def test_only_json_is_accepted_and_returned(world: World, api: APIClient) -> None:
    is_error(api.post(TASKS, {"title": "x"}, format=None, content_type="text/csv"), 415, "unsupported_media_type")
    is_error(api.put(TASKS, {}, format="json"), 405, "method_not_allowed")
    is_error(api.get(TASKS, headers={"accept": "text/html"}), 406, "not_acceptable")


def test_valid_token_authenticates_and_invalid_one_does_not(world: World) -> None:
    token = Token.objects.create(user=world.member)
    client = APIClient()
    assert client.get(TASKS, headers={"authorization": f"Token {token.key}"}).status_code == 200
    for wrong in ("Token wrong", "Token", "Token a b", "Token é"):
        is_error(client.get(TASKS, headers={"authorization": wrong}), 401, "not_authenticated")
    world.member.is_active = False
    world.member.save()
    is_error(client.get(TASKS, headers={"authorization": f"Token {token.key}"}), 401, "not_authenticated")


def test_browser_session_needs_a_csrf_token_to_write(world: World) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(world.member)
    assert browser.get(TASKS).status_code == 200
    is_error(browser.post(TASKS, {"title": "x"}, content_type=JSON), 403, "permission_denied")
    browser.get("/login/")
    browser.cookies["kandev_csrf"] = "a" * 32
    allowed = browser.post(TASKS, {"title": "x"}, content_type=JSON, headers={"x-csrftoken": "a" * 32})
    assert allowed.status_code == 201


def test_unexpected_error_is_logged_and_reveals_nothing(
    world: World, api: APIClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(user: Any) -> None:
        raise RuntimeError("the secret reason")

    monkeypatch.setattr(board_views, "visible_tasks", fail)
    answer = api.get(TASKS)
    is_error(answer, 500, "internal_error")
    assert "secret" not in answer.content.decode()
    assert "the secret reason" in caplog.text


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (places.AgentctlUnreachable(), 503, "agentctl_unreachable"),
        (places.AgentctlForeign(), 503, "agentctl_unreachable"),
        (places.AgentctlOutdated(), 409, "agentctl_outdated"),
        (places.RuntimeUnavailable(), 503, "runtime_unavailable"),
        (places.LaunchFailed(), 503, "runtime_unavailable"),
        (places.WorkspaceGone(), 409, "worktree_missing"),
        (places.StaleGeneration(status=409, refusal="stale_generation"), 409, "stale_generation"),
        (places.AgentctlRefused(status=404, refusal="not_found"), 404, "not_found"),
        (places.AgentctlRefused(status=400, refusal="validation_error"), 400, "validation_error"),
        (places.AgentctlRefused(status=409, refusal="busy"), 409, "conflict"),
        (IntegrityError(), 409, "conflict"),
        (OperationalError("database or disk is full"), 503, "database_full"),
        (OperationalError("database is locked"), 503, "database_busy"),
        (OperationalError("no such table"), 500, "internal_error"),
        (Throttled(wait=3), 429, "throttled"),
    ],
)
def test_errors_of_other_layers_have_their_code(error: Exception, status: int, code: str) -> None:
    answer = exception_handler(error, {})
    assert (answer.status_code, answer.data["code"]) == (status, code)
    assert answer.data["message"]


def refused(answer: Any) -> list[str]:
    """Return the field names in a validation error."""
    body = answer.json()
    assert (answer.status_code, body["code"]) == (400, "validation_error")
    return sorted(body["details"])


def test_prompt_with_an_unknown_field_is_refused(world: World, api: APIClient) -> None:
    request = {"message_id": "1", "text": "Look at this", "images": ["a.png"]}
    answer = api.post(world.url("prompt/"), request, format="json")
    assert refused(answer) == ["images"]
    assert answer.json()["details"]["images"] == [
        "Unknown field. Known fields: message_id, text, attachments, deliver."
    ]
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


@pytest.mark.parametrize("changes", [{"agent_profile": "x"}, {"policy": "auto", "desired_state": "stopped"}])
def test_only_the_policy_of_a_session_can_be_changed(world: World, api: APIClient, changes: dict[str, str]) -> None:
    assert set(refused(api.patch(world.url(), changes, format="json"))) == set(changes) - {"policy"}


def test_settings_with_an_unknown_field_are_refused(world: World, api: APIClient) -> None:
    answer = api.patch("/api/v1/notifications/", {"email": True, "sms": True}, format="json")
    assert refused(answer) == ["sms"]
    assert not NotificationSettings.objects.filter(email=True).exists()
