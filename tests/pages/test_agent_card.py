"""The card *Agent* of the session page: settings, commands and the agent's title, whatever the agent sends."""

from __future__ import annotations

import pytest
from django.test import Client

from sessions_app.models import AgentSettings, TaskSession
from tests.pages.world import World, ingest_lines, path_of

pytestmark = pytest.mark.any_database

EVIL = "<script>alert(1)</script>"
MODE = {
    "id": "mode",
    "name": EVIL,
    "type": "select",
    "value": "act",
    "choices": [{"value": "act", "name": "Act"}, {"value": "plan", "name": "Plan", "description": '"><b>'}],
}
FAST = {"id": "fast", "name": "Fast answers", "type": "boolean", "value": False}


@pytest.fixture
def session(world: World) -> TaskSession:
    made = world.running_session()
    ingest_lines(
        made,
        {"kind": "agent.settings", "settings": [MODE, FAST], "reason": "opened"},
        {"kind": "agent.commands", "commands": [{"name": "work", "description": EVIL, "hint": "seconds"}]},
        {"kind": "agent.title", "title": f"Fences {EVIL}"},
    )
    return made


def change_of(session: TaskSession, setting: str) -> dict[str, object]:
    return AgentSettings.objects.get(session=session).change_of(setting)


def test_card_shows_what_the_agent_offers_and_escapes_it(ada: Client, session: TaskSession) -> None:
    html = ada.get(path_of(session)).text
    assert EVIL not in html
    assert '"><b>' not in html
    for text in ("Fences", "Fast answers", "/work", 'role="switch"', "Apply"):
        assert text in html


def test_session_without_a_report_has_no_card(ada: Client, world: World) -> None:
    assert 'id="agent-card"' not in ada.get(path_of(world.running_session())).text


@pytest.mark.parametrize(
    ("posted", "setting", "value"),
    [
        ({"setting": "mode", "type": "select", "value": "plan"}, "mode", "plan"),
        ({"setting": "fast", "type": "boolean", "value": "true"}, "fast", True),
    ],
)
def test_form_changes_a_setting_and_shows_it_as_pending(
    ada: Client, session: TaskSession, posted: dict[str, str], setting: str, value: object
) -> None:
    assert ada.post(f"{path_of(session)}setting/", posted).status_code == 302
    assert change_of(session, setting)["value"] == value
    assert "Waiting for the agent" in ada.get(f"{path_of(session)}live/").json()["parts"]["agent"]


def test_refusal_is_shown_with_the_reason_of_the_agent(ada: Client, session: TaskSession) -> None:
    ada.post(f"{path_of(session)}setting/", {"setting": "mode", "type": "select", "value": "plan"})
    change_id = change_of(session, "mode")["id"]
    ingest_lines(
        session,
        {
            "kind": "setting.refused",
            "change_id": change_id,
            "setting": "mode",
            "code": "setting_refused",
            "reason": "No.",
        },
    )
    html = ada.get(path_of(session)).text
    assert "The agent refused “Plan”: No." in html
