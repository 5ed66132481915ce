"""The page of the places where agents run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import pytest
from django.test import Client

from executors_app.models import AgentCapability, Executor, ExecutorRunning
from sessions_app.models import TeamRole
from tests.pages.world import World, path_of

NOVEMBER: Final = datetime(2026, 11, 3, 9, tzinfo=UTC)


def test_without_any_place_it_says_so(ada: Client, world: World) -> None:
    Executor.objects.all().delete()
    html = ada.get("/executors/").text
    assert "There is no executor yet" in html
    assert "Nothing runs for your teams now" in html


def test_a_place_tells_its_runtime_its_isolation_and_its_load(ada: Client, bob: Client, world: World) -> None:
    world.running_session()
    Executor.objects.update(max_live=3)
    for reader in (ada, bob):
        html = reader.get("/executors/").text
        assert "local_standalone" in html
        assert "Trusted agents only" in html
        assert "1 live of at most 3" in html


def test_a_place_of_an_unknown_runtime_spoils_nothing(ada: Client, world: World) -> None:
    Executor.objects.create(name="Old", runtime="dismantled")
    assert "dismantled" in ada.get("/executors/").text


def test_what_runs_is_shown_to_its_own_team(ada: Client, bob: Client, world: World) -> None:
    session = world.running_session()
    for page in ("/executors/", "/executors/live/"):
        mine, theirs = ada.get(page).content.decode(), bob.get(page).content.decode()
        assert path_of(session) in mine
        assert path_of(session) not in theirs
        assert "Mend the tests" not in theirs


def test_what_rests_is_not_running(ada: Client, world: World) -> None:
    session = world.resting_session()
    assert path_of(session) not in ada.get("/executors/").text


@pytest.fixture
def failed(world: World) -> Any:
    session = world.resting_session(resume_token="t")
    ExecutorRunning.objects.update(status="error", error_message="The disk is full.")
    return session


def test_an_error_is_told_and_can_be_tried_again(ada: Client, failed: Any) -> None:
    html = ada.get("/executors/").text
    assert "The disk is full." in html
    assert f'formaction="{path_of(failed)}resume/" name="mode" value="auto"' in html
    ada.post(f"{path_of(failed)}resume/", {"mode": "auto"})
    assert failed.intents.get(done_at=None).kind == "start"


def test_a_viewer_sees_the_error_and_no_button(ada: Client, world: World, failed: Any) -> None:
    TeamRole.objects.create(team=world.team, user=world.ada, role=TeamRole.Role.VIEWER)
    html = ada.get("/executors/").text
    assert "The disk is full." in html
    assert "Retry" not in html


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"claimed": True}, "Demo agent 1.2 claims session/load; it has not been tried."),
        ({"claimed": True, "kept_at": NOVEMBER}, "Demo agent 1.2 claims session/load, and kept it on 3 Nov 2026."),
        (
            {"claimed": True, "broken_at": NOVEMBER, "broken_how": "error", "broken_said": "no <b>such</b> row"},
            "Demo agent 1.2 claims session/load, but did not keep it on 3 Nov 2026: it answered with an error.",
        ),
    ],
)
def test_what_agents_claim_is_told_to_everybody_without_their_own_words(
    values: dict[str, Any], words: str, bob: Client
) -> None:
    key = {"agent_type": "demo", "agent_version": "1.2", "capability": "load_session", "last_seen_at": NOVEMBER}
    AgentCapability.objects.create(**key, **values)
    html = bob.get("/executors/").text
    assert words in html
    assert "such" not in html


def test_an_agent_type_that_is_no_more_is_called_by_its_name(ada: Client) -> None:
    AgentCapability.objects.create(
        agent_type="<dismantled>", capability="load_session", claimed=True, last_seen_at=NOVEMBER
    )
    assert "&lt;dismantled&gt; claims session/load" in ada.get("/executors/").text
