"""External waits on a session's page: the form that shows the key once, the list, rotating and ending."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from sessions_app.models import Prompt, TaskSession
from sessions_app.waits import services as waits
from tests.api.world import client_of
from tests.pages.world import World, path_of

pytestmark = pytest.mark.any_database

SCRIPT = {"Accept": "application/json"}
FORM = {"reason": "The build of main", "kind": "build", "expires": "3600"}


def page(client: Client, session: TaskSession) -> str:
    return str(client.get(path_of(session)).text)


def call_of(text: str) -> dict[str, Any]:
    """Return the body of the request that the page shows as an example."""
    found = re.search(r"-d '(\{.*\})' \\", html.unescape(text))
    assert found
    document: dict[str, Any] = json.loads(found[1])
    return document


def test_wait_key_is_shown_once_with_a_working_call(ada: Client, world: World) -> None:
    session = world.resting_session(resume_token="t")
    shown = ada.post(f"{path_of(session)}waits/", FORM)
    assert (shown.status_code, "no-store" in shown["Cache-Control"]) == (200, True)
    body = call_of(shown.text)
    assert f'value="{body["resume_token"]}"' in shown.text
    assert "http://testserver/api/v1/runs/resume/" in shown.text
    deadline = session.wait_keys.get().expires_at
    assert deadline is not None
    assert 3500 < (deadline - timezone.now()).total_seconds() <= 3600
    listed = page(ada, session)
    assert "The build of main" in listed
    assert body["resume_token"] not in listed

    for _ in range(2):  # the response to this was lost
        assert client_of(None).post("/api/v1/runs/resume/", body, format="json").status_code == 200

    assert json.loads(Prompt.objects.get(kind="wait").text) == {"result": "passed"}
    listed = page(ada, session)
    assert "End the wait" not in listed
    assert re.search(r"Answered</span> <span>The build of main<", listed)


def test_json_response_contains_the_key_as_html(ada: Client, world: World) -> None:
    session = world.resting_session(resume_token="t")
    shown = ada.post(f"{path_of(session)}waits/", {**FORM, "kind": "approval", "expires": ""}, headers=SCRIPT).json()
    assert call_of(shown["key_html"])["payload"] == {"approved": True}
    assert session.wait_keys.get().expires_at is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"reason": " "}, "What to wait for: This field is required."),
        ({"reason": "x" * 2001}, "What to wait for: Ensure this value has at most 2000 characters"),
        ({"kind": "permission"}, "Kind: Select a valid choice."),
        ({"expires": "1"}, "Until: Select a valid choice."),
        ({"expires": "soon"}, "Until: Select a valid choice."),
    ],
)
def test_invalid_wait_form_opens_nothing(ada: Client, world: World, change: dict[str, str], text: str) -> None:
    session = world.resting_session(resume_token="t")
    refused = ada.post(f"{path_of(session)}waits/", FORM | change, headers=SCRIPT)
    assert refused.status_code == 409
    assert text in refused.json()["message"]
    assert not session.wait_keys.exists()
    assert text in html.unescape(ada.post(f"{path_of(session)}waits/", FORM | change, follow=True).text)


def test_wait_cannot_start_during_a_turn_and_its_form_is_hidden(ada: Client, world: World) -> None:
    session = world.running_session()
    listed = page(ada, session)
    assert "data-may-wait" not in listed
    refused = ada.post(f"{path_of(session)}waits/", FORM, headers=SCRIPT)
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert "data-may-wait" in page(ada, world.resting_session(resume_token="t"))


def test_rotating_the_key_revokes_the_old_one_and_keeps_the_wait(ada: Client, world: World) -> None:
    session = world.resting_session(resume_token="t")
    first = call_of(ada.post(f"{path_of(session)}waits/", FORM).text)
    deadline = session.wait_keys.get().expires_at
    shown = ada.post(f"{path_of(session)}waits/rotate/", {"wait_id": first["idempotency_key"]})
    second = call_of(shown.text)
    assert second["resume_token"] != first["resume_token"]
    assert session.wait_keys.latest("created_at").expires_at == deadline
    refused = client_of(None).post("/api/v1/runs/resume/", first, format="json").json()
    assert (refused["code"], refused["details"]["reason"]) == ("token_revoked", "rotated")
    assert "The build of main" in page(ada, session)
    assert client_of(None).post("/api/v1/runs/resume/", second, format="json").status_code == 200


def test_outdated_wait_button_does_not_cancel_a_turn(ada: Client, world: World) -> None:
    session = world.resting_session(resume_token="t")
    key = call_of(ada.post(f"{path_of(session)}waits/", FORM).text)
    client_of(None).post("/api/v1/runs/resume/", key, format="json")
    for tail in ("end-wait/", "waits/rotate/"):
        refused = ada.post(f"{path_of(session)}{tail}", {"wait_id": key["idempotency_key"]}, headers=SCRIPT)
        assert (refused.status_code, refused.json()["message"]) == (409, "This wait is over.")
    assert not session.intents.filter(kind="cancel").exists()


def test_ended_waits_show_their_results(ada: Client, world: World) -> None:
    session = world.resting_session(resume_token="t")
    for number in range(6):
        opened = waits.open_wait(session.id, f"Build {number}", None, world.ada)
        ada.post(f"{path_of(session)}end-wait/", {"wait_id": opened.wait_id})
    session.wait_keys.filter(run__wait_reason="Build 4").update(revoked_at=None, reason="", expired_at=timezone.now())
    listed = page(ada, session)
    line = r'<span class="pill \w+">([\w ]+)</span> <span>(Build \d)</span> <small>.*?( · \w+)?</small>'
    past = re.findall(line, listed, re.DOTALL)
    assert past == [
        ("Revoked", "Build 5", " · cancelled"),
        ("Expired", "Build 4", ""),
        *(("Revoked", f"Build {number}", " · cancelled") for number in (3, 2, 1)),
    ]


def test_viewer_sees_waits_without_actions(ada: Client, world: World) -> None:
    session = world.resting_session(resume_token="t")
    waits.open_wait(session.id, "The build of main", None, world.ada)
    world.ada.team_roles.create(team=world.team, role="viewer")
    listed = page(ada, session)
    assert "The build of main" in listed
    for way in ("end-wait", "waits/rotate", "wait-form", "data-may-wait"):
        assert way not in listed
    assert ada.post(f"{path_of(session)}waits/", FORM).status_code == 403
