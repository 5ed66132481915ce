"""The card *Agent* of the session page: settings, commands and the agent's title, whatever the agent sends."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from django.utils import timezone

from executors_app.models import AgentCapability, AgentProfile
from sessions_app.models import AgentSettings, TaskSession
from sessions_app.sessions.services.status import session_status
from sessions_app.turns.retries import explain_failure
from tests.pages.world import World, asks, ingest_lines, path_of

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


def tool(number: int, kind: str, status: str = "completed") -> dict[str, Any]:
    return {"kind": "tool.call", "tool_call_id": f"t{number}", "title": "it", "tool_kind": kind, "status": status}


OBSERVED = "has never asked for permission"


@pytest.mark.parametrize(
    ("lines", "mode", "is_observed"),
    [
        ([tool(1, "execute"), tool(2, "edit")], "ask", True),
        ([tool(1, "execute")], "auto_approve", False),
        ([tool(1, "read"), tool(2, "search"), tool(3, "fetch")], "ask", False),
        ([tool(1, "execute", "pending")], "ask", False),
        ([tool(1, "execute"), asks("p1")], "ask", False),
    ],
)
def test_agent_that_runs_tools_without_ever_asking_is_observed(
    ada: Client, world: World, lines: list[dict[str, Any]], mode: str, is_observed: bool
) -> None:
    AgentProfile.objects.update(permission_mode=mode)
    session = world.running_session()
    ingest_lines(session, *lines)
    assert (OBSERVED in ada.get(path_of(session)).text) is is_observed


def name_itself(session: TaskSession, name: str, *, team: Group | None = None) -> None:
    AgentCapability.objects.create(
        team=team or session.task.team,
        profile=session.agent_profile,
        executor=session.executor,
        agent_type="custom_acp",
        agent_name=name,
        agent_version="1",
        capability="load_session",
        claimed=True,
        last_seen_at=timezone.now(),
    )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("hermes", "hermes"),
        ("\u202eevil\nname" + "x" * 200, "evil name" + "x" * 51),
        ("\u200b", "Custom agent (ACP)"),
    ],
)
def test_custom_agent_is_called_by_its_own_name(ada: Client, world: World, name: str, shown: str) -> None:
    AgentProfile.objects.update(agent_type="custom_acp", command=["true"])
    session = world.resting_session()
    name_itself(session, "stranger", team=Group.objects.exclude(id=session.task.team_id).first())
    assert session_status(session)["agent_title"] == "Custom agent (ACP)"
    name_itself(session, name)
    session.refresh_from_db()
    assert session_status(session)["agent_title"] == shown
    assert explain_failure(session, "auth_required", "No.").startswith(f"{shown} is not logged in")
    assert "stranger" not in ada.get("/agents/").text


def test_known_agent_keeps_the_title_of_its_type(world: World) -> None:
    session = world.resting_session()
    name_itself(session, "Something else")
    assert session_status(session)["agent_title"] == "Demo agent"
