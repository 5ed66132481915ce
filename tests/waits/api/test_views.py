"""Waits in the API: opened by members, and ended by whoever has the key."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from sessions_app.models import Prompt, Turn
from tests.api.world import World, client_of, make_world

RESUME = "/api/v1/runs/resume/"


@pytest.fixture
def world(db: None) -> World:
    made = make_world()
    made.mark_running()
    return made


def open_wait(world: World, **values: Any) -> Any:
    body = {"kind": "external", "reason": "The build", **values}
    return client_of(world.member).post(world.url("waits/"), body, format="json")


def redeem(key: str, **values: Any) -> Any:
    """Redeem a key as a build without an account does."""
    return APIClient().post(RESUME, {"resume_token": key, **values}, format="json")


def test_wait_is_ended_without_an_account(world: World) -> None:
    deadline = timezone.now() + timedelta(hours=1)
    opened = open_wait(world, deadline=deadline.isoformat())
    assert (opened.status_code, opened["Cache-Control"]) == (201, "no-store")
    wait = opened.json()
    ended = redeem(wait["resume_token"], payload={"result": "passed"}, idempotency_key="1")
    assert (ended.status_code, ended.json()) == (200, {"run_id": wait["run_id"], "status": "running"})
    assert redeem(wait["resume_token"], payload="other", idempotency_key="1").json() == ended.json()
    refused = redeem(wait["resume_token"], payload="other", idempotency_key="2")
    assert (refused.status_code, refused.json()["code"]) == (410, "token_consumed")
    assert Prompt.objects.get(kind="wait").message_id == f"wait:{wait['wait_id']}"
    [run] = client_of(world.member).get(world.url("runs/")).json()["results"]
    assert (run["id"], run["state"], run["wait_kind"]) == (wait["run_id"], "running", "external")
    assert (run["wait_id"], run["wait_reason"]) == (wait["wait_id"], "The build")


@pytest.mark.parametrize("kind", ["permission", "nonsense"])
def test_kind_of_wait_reserved_for_agents_is_refused(world: World, kind: str) -> None:
    refused = open_wait(world, kind=kind).json()
    wording = f"You cannot request a wait of the kind “{kind}”. Use “external” or “tool_result”."
    assert (refused["code"], refused["details"]) == ("validation_error", {"kind": [wording]})
    assert refused["message"] == f"kind: {wording}"


def test_wait_for_a_tool_result_is_opened_and_ended(world: World) -> None:
    wait = open_wait(world, kind="tool_result", reason="The scan", deadline="2099-01-01T00:00:00Z").json()
    status = client_of(world.member).get(world.url("status/")).json()
    assert (status["derived_status"], status["wait"]["kind"]) == ("waiting", "tool_result")
    assert (status["wait"]["id"], status["wait"]["deadline"]) == (wait["wait_id"], "2099-01-01T00:00:00+00:00")
    assert status["wait"]["since_seq"] > 0
    assert redeem(wait["resume_token"], payload={"found": 0}).json()["run_id"] == wait["run_id"]
    assert Prompt.objects.get(kind="wait").text == '{\n  "found": 0\n}'


def test_key_is_shown_only_in_one_response(world: World) -> None:
    key = open_wait(world).json()["resume_token"].removeprefix("kwt_")
    member = client_of(world.member)
    for tail in ("", "status/", "runs/", "events/", "permissions/", "messages/", "prompts/"):
        assert key not in member.get(world.url(tail)).text, tail


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"kind": "permission"}, "kind"),
        ({"kind": None}, "kind"),
        ({"reason": 1}, "reason"),
        ({"reason": "x" * 2001}, "reason"),
        ({"deadline": "soon"}, "deadline"),
        ({"deadline": "2020-01-01T00:00:00Z"}, "deadline"),
    ],
)
def test_invalid_field_of_a_wait_is_named(world: World, body: dict[str, Any], field: str) -> None:
    refused = open_wait(world, **body)
    assert (refused.status_code, list(refused.json()["details"])) == (400, [field])
    assert not Turn.objects.exists()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "resume_token"),
        ({"resume_token": 1}, "resume_token"),
        ({"resume_token": "x", "idempotency_key": {}}, "idempotency_key"),
        ({"resume_token": "x", "idempotency_key": "x" * 129}, "idempotency_key"),
    ],
)
def test_invalid_field_of_a_redemption_is_named(world: World, body: dict[str, Any], field: str) -> None:
    refused = APIClient().post(RESUME, body, format="json")
    assert (refused.status_code, list(refused.json()["details"])) == (400, [field])


def test_viewer_sees_the_request_and_never_its_key(world: World) -> None:
    member, permissions = client_of(world.member), world.url("permissions/")
    assert member.get(permissions).json()["results"][0]["resume_token"] == world.token()
    world.member.team_roles.create(team=world.team, role="viewer")
    [permission] = member.get(permissions).json()["results"]
    assert (permission["state"], permission["resume_token"]) == ("pending", None)


def test_wrong_wait_keys_are_throttled_and_valid_ones_are_not(world: World) -> None:
    key = open_wait(world).json()["resume_token"]
    redeem(key, idempotency_key="1")
    for _ in range(40):
        assert redeem(key, idempotency_key="2").status_code == 410
    codes = [redeem(f"kwt_guess-{number}").status_code for number in range(31)]
    assert codes == [403] * 30 + [429]
    throttled = redeem("kwt_guess")
    assert (throttled.json()["code"], int(throttled["Retry-After"]) > 0) == ("throttled", True)
    assert redeem(key, idempotency_key="1").status_code == 200, "a correct key is accepted"
    elsewhere = APIClient(REMOTE_ADDR="192.0.2.7", HTTP_X_FORWARDED_FOR="127.0.0.1")
    assert elsewhere.post(RESUME, {"resume_token": "kwt_guess"}, format="json").status_code == 403


def test_caller_cannot_hide_behind_a_forwarded_header(world: World) -> None:
    codes = [
        APIClient(HTTP_X_FORWARDED_FOR=f"192.0.2.{number}")
        .post(RESUME, {"resume_token": "x"}, format="json")
        .status_code
        for number in range(31)
    ]
    assert codes[-1] == 429
