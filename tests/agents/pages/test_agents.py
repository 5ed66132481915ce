"""The agents page: claimed and observed capabilities, and what a restart means for each agent."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from executors_app.models import AgentCapability, AgentProfile
from executors_app.plugins import agent_type, agent_types
from sessions_app.agents.views.agents import SUGGESTED_TYPES
from sessions_app.models import ReportedAgent
from tests.pages.world import World

pytestmark = pytest.mark.any_database

NOVEMBER: Final = datetime(2026, 11, 3, 9, tzinfo=UTC)


def observe(world: World, **values: Any) -> None:
    """Store an observation of Ada's team."""
    key = {"team": world.team, "profile": world.profile, "executor": world.executor, "agent_type": "demo"}
    fields = {"capability": "load_session", "claimed": True, "last_seen_at": NOVEMBER}
    AgentCapability.objects.create(**{**key, **fields, **values})


def test_each_agent_type_explains_what_a_restart_means(ada: Client, world: World) -> None:
    html = ada.get("/agents/").text
    for kind in agent_types().values():
        assert f'id="kind-{kind.name}">{kind.title.replace("&", "&amp;")}' in html
    first, others = html.split('id="others-title"')
    restores, cannot = "The agent restores its own conversation", "The agent cannot restore conversations."
    assert first.count(restores) + first.count(cannot) == first.count('id="kind-')
    labels = others.count(">Resumes<") + others.count(">Gets the history<") + others.count(">Starts over<")
    assert labels == others.count('id="kind-')
    assert '<span class="pill' not in others, "nothing is claimed of a program that is not there"
    assert '<span class="pill good">Resumes' not in html, "nothing was observed yet"


def test_agents_that_can_run_come_before_those_that_are_not_installed(
    ada: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    first, others = ada.get("/agents/").text.split('id="others-title"')
    assert 'id="kind-demo"' in first
    assert 'id="kind-codex"' in others
    assert "Agents that are not installed yet" in others


@pytest.mark.parametrize("is_installed", [True, False])
def test_page_without_an_installed_agent_suggests_a_few(
    ada: Client, world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_installed: bool
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if is_installed:
        program = tmp_path / agent_type("codex").argv[0]
        program.touch(0o755)
    others = ada.get("/agents/").text.split('id="others-title"')[1]
    suggested, folded = others.split('<details data-key="others"><summary>')
    found = set(re.findall(r'id="kind-([^"]+)"', suggested))
    assert found == (set() if is_installed else SUGGESTED_TYPES), "a newcomer chooses one of them"
    assert len(re.findall(r'id="kind-', folded)) > 20
    assert ("more agents that Kandev knows" in folded) is not is_installed


def test_capabilities_of_one_agent_are_one_line(ada: Client, world: World) -> None:
    observe(world, agent_version="1.2")
    observe(world, agent_version="1.2", capability="resume_session")
    observe(world, agent_version="1.3", kept_at=NOVEMBER)
    observe(world, agent_version="1.3", capability="resume_session")
    html = ada.get("/agents/").text
    assert "Demo agent 1.2 announces session/load and session/resume. No restart has needed them yet." in html
    assert (
        "Demo agent 1.3 supports session/load, as observed on 3 Nov 2026. "
        "It announces session/resume. No restart has needed it yet." in html
    )
    assert html.count("last seen") == 2


def test_search_finds_agents_by_name_and_unfolds_them(ada: Client, world: World) -> None:
    html = ada.get("/agents/?q=CODEX").text
    assert re.findall(r'id="kind-([^"]+)"', html) in (["codex", "codex_cli"], ["codex_cli", "codex"])
    assert '<details data-key="others"><summary>' not in html
    assert "no agent whose name contains “&lt;b&gt;”" in ada.get("/agents/?q=<b>").text


def test_profile_shows_resume_support_and_number_of_sessions(ada: Client, bob: Client, world: World) -> None:
    world.session()
    forgetful = {"supports_session_resume": False, "history_context_injection": False}
    AgentProfile.objects.create(name="Forgetful", agent_type="demo", team=world.team, **forgetful)
    AgentProfile.objects.create(name="Old", agent_type="dismantled")
    html = ada.get("/agents/").text
    for words in (">Resumes<", "Starts over", "1 session in your teams", "Unknown type"):
        assert words in html
    assert "Forgetful" not in bob.get("/agents/").text


def test_empty_agents_page_explains_how_to_get_a_profile(ada: Client, world: World) -> None:
    AgentProfile.objects.all().delete()
    assert "There is no agent profile yet." in ada.get("/agents/").text
    assert "Ask an administrator" in ada.get("/agents/").text


def test_query_count_does_not_grow_with_profiles_and_capabilities(ada: Client, world: World) -> None:
    counts = []
    for number in (1, 20):
        for n in range(number):
            AgentProfile.objects.create(name=f"p{n}", agent_type="demo", team=world.team)
            observe(
                world,
                agent_version=f"{number}.{n}",
            )
        with CaptureQueriesContext(connection) as seen:
            ada.get("/agents/")
        counts.append(len(seen))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"claimed": True}, "Demo agent 1.2 announces session/load. No restart has needed it yet."),
        ({"claimed": True, "kept_at": NOVEMBER}, "Demo agent 1.2 supports session/load, as observed on 3 Nov 2026."),
        (
            {"claimed": True, "broken_at": NOVEMBER, "broken_how": "error", "broken_said": "no <b>such</b> row"},
            "Demo agent 1.2 announces session/load, but it failed on 3 Nov 2026: it answered with an error.",
        ),
    ],
)
def test_capabilities_are_shown_to_their_team_without_agents_errors(
    values: dict[str, Any], words: str, ada: Client, bob: Client, world: World
) -> None:
    observe(world, agent_version="1.2", **values)
    html = ada.get("/agents/").text
    assert words in html
    assert "such" not in html
    assert "Demo agent 1.2" not in bob.get("/agents/").text, "what another team's agent reported"


TITLES: Final = [
    ("Friendly Agent", "Friendly Agent 1.2 announces"),
    ("", "friendly-cli 1.2 announces"),
    ("<b>\u202egro", "&lt;b&gt; gro 1.2 announces"),
    ("x" * 200, f"{'x' * 60} 1.2 announces"),
]


@pytest.mark.parametrize(("title", "words"), TITLES)
def test_custom_agent_is_called_by_its_title(title: str, words: str, ada: Client, world: World) -> None:
    AgentProfile.objects.update(agent_type="custom_acp")
    names = {"agent_name": "friendly-cli", "agent_title": title, "agent_version": "1.2"}
    observe(world, agent_type="custom_acp", **names)
    assert words in ada.get("/agents/").text


def test_version_line_names_the_program_by_its_title(ada: Client, world: World) -> None:
    place = {"team": world.team, "executor": world.executor, "agent_type": "demo", "seen_at": NOVEMBER}
    ReportedAgent.objects.create(**place, name="demo-cli", title="<i>\u202eDemo" + "x" * 99, version="1.2")
    html = ada.get("/agents/demo/").text
    assert re.search(r"<bdi>&lt;i&gt;⟦RLO⟧Demox+…</bdi>, version <bdi>1\.2</bdi>, was started here", html)
    assert "x" * 60 not in html


def test_removed_agent_type_is_shown_by_its_name(ada: Client, world: World) -> None:
    observe(world, agent_type="<dismantled>")
    assert "&lt;dismantled&gt; announces session/load" in ada.get("/agents/").text
